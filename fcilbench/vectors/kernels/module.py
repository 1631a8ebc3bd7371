"""Triton kernels of the inference-ready module: tau_uni, and the norms that give the scales; see `projection`."""

# See `passes`.
# mypy: ignore-errors
# ruff: noqa: PLR0917, RUF005

import triton
import triton.language as tl

from fcilbench.vectors.kernels.projection import load_block, load_rows, store_sums, zeros


@triton.jit
def _add_votes(votes, row, magnitude, last, columns, RULE: tl.constexpr):
    """Adds a row, sparsified by its cut, to what the election needs: largest, smallest, and the sum that it counts."""
    largest, smallest, total = votes
    bits = row.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    keep = (bits > magnitude) | ((bits == magnitude) & (columns <= last))
    x = row * keep.to(tl.float32)  # a NaN stays a NaN, as in the torch path
    largest = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
    smallest = tl.minimum(smallest, x, propagate_nan=tl.PropagateNan.ALL)
    if RULE == "count":
        total += (x > 0).to(tl.int32) - (x < 0).to(tl.int32)
    else:
        total += x.to(tl.float64)
    return largest, smallest, total


@triton.jit
def _elected(votes, RULE: tl.constexpr):
    """Returns what `fcilbench.vectors.unify.elect` does."""
    largest, smallest, total = votes
    if RULE == "off":
        return total.to(tl.float32)
    sign = (largest > 0).to(tl.int32) - (smallest < 0).to(tl.int32) if RULE == "strict" else total
    return tl.where(sign > 0, largest, tl.where(sign < 0, smallest, 0.0))


@triton.jit(
    do_not_specialize=["tasks", "size"],
    do_not_specialize_on_alignment=["table", "magnitudes", "lasts", "unified"],
)
def unify(
    table,
    tasks: tl.int64,
    magnitudes,
    lasts,
    size: tl.int64,
    unified,
    RULE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes tau_uni `[D]`: each row sparsified by its cut (`fcilbench.vectors.topk.Cut`), then elected."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    lanes = tl.arange(0, BLOCK)
    for left in range(program * BLOCK, size, programs * BLOCK):
        columns = left + lanes
        live = columns < size
        nothing = tl.zeros([BLOCK], tl.float32)
        votes = nothing, nothing, tl.zeros([BLOCK], tl.int32 if RULE == "count" else tl.float64)
        for first in range(0, tasks, ROWS):
            rows = load_rows(table, tasks, first, columns, live, ROWS)
            for i in tl.static_range(ROWS):
                there = first + i < tasks
                magnitude = tl.load(magnitudes + first + i, mask=there, other=0)
                last = tl.load(lasts + first + i, mask=there, other=0)
                votes = _add_votes(votes, rows[i], magnitude, last, columns, RULE)
        tl.store(unified + columns, _elected(votes, RULE), mask=live)


@triton.jit
def _rebuild(table, first, coefficients, width, columns, live, own, ROWS: tl.constexpr):
    """Returns tau_k of the rows `own` from `first` on: row k, plus `r_kj row_j` for j = 0 .. k - 1 in this order.

    In float32 with fused multiply-adds, as `add_` with `alpha` does in torch, so that it has the bits of
    `fcilbench.vectors.basis.accumulated` on the same device.
    """
    found = own
    for j in range(0, first):
        row = tl.load(table + j).to(tl.pointer_type(tl.float32))
        x = tl.load(row + columns, mask=live, other=0.0)
        added = ()
        for i in tl.static_range(ROWS):
            added = added + (tl.fma(x, tl.load(coefficients + (first + i) * width + j), found[i]),)
        found = added
    whole = ()
    for i in tl.static_range(ROWS):
        total = found[i]
        for j in tl.static_range(i):
            total = tl.fma(own[j], tl.load(coefficients + (first + i) * width + first + j), total)
        whole = whole + (total,)
    return whole


@triton.jit
def _add_norms(sums, rows, unified, ROWS: tl.constexpr):
    """Adds `|row_i|`, and behind them `|unified|` where row i has its sign, to the sums, in float64."""
    added = ()
    for i in tl.static_range(ROWS):
        added = added + (sums[i] + tl.abs(rows[i]).to(tl.float64),)
    size = tl.abs(unified).to(tl.float64)
    for i in tl.static_range(ROWS):
        agrees = ((rows[i] > 0) & (unified > 0)) | ((rows[i] < 0) & (unified < 0))
        added = added + (sums[ROWS + i] + tl.where(agrees, size, 0.0),)
    return added


@triton.jit(
    do_not_specialize=["tasks", "size"],
    do_not_specialize_on_alignment=["table", "coefficients", "unified", "partial"],
)
def norms(
    table,
    tasks: tl.int64,
    coefficients,
    unified,
    size: tl.int64,
    partial,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Writes ||tau_k||_1 and ||m_k * tau_uni||_1 of each task, `[programs, 2, tiles * ROWS]`.

    `coefficients` is r as a float32 matrix `[tiles * ROWS, tiles * ROWS]`. Up to T = ROWS each row is read once; a
    later tile reads the rows before its own once more.
    """
    tile, tiles = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    program, programs = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    lanes = tl.arange(0, BLOCK)
    sums = zeros(BLOCK, 2 * ROWS)
    for left in range(program * (BLOCK * UNROLL), size, programs * (BLOCK * UNROLL)):
        loaded = load_block(table, tasks, tile * ROWS, unified, left, size, ROWS, BLOCK, UNROLL)
        for turn in tl.static_range(UNROLL):
            columns = left + turn * BLOCK + lanes
            own, live = loaded[2 * turn + 1], columns < size
            whole = _rebuild(table, tile * ROWS, coefficients, tiles * ROWS, columns, live, own, ROWS)
            sums = _add_norms(sums, whole, loaded[2 * turn], ROWS)
    store_sums(sums, partial, program, tile, tiles, ROWS)
