"""Triton kernels of temporal SUM's projection: passes over basis vectors that lie anywhere in memory.

`table` holds the addresses of T float32 vectors `[D]`, int64. A kernel takes `ROWS` of them at a time: all loads come
before the arithmetic, as what is under way at once decides the bandwidth; rows beyond T are not read and count as
zero, so one binary serves up to `ROWS` vectors. As in `passes`, programs write partial results of their own, offsets
are int64, and nothing is specialised on sizes or alignments.
"""

# See `passes`.
# mypy: ignore-errors
# ruff: noqa: PLR0917, RUF005

import triton
import triton.language as tl


@triton.jit
def load_rows(table, tasks, first, columns, live, ROWS: tl.constexpr):
    """Returns the entries of `ROWS` vectors from `first` on, as a tuple; 0 beyond the last one."""
    found = ()
    for i in tl.static_range(ROWS):
        there = first + i < tasks
        row = tl.load(table + first + i, mask=there, other=0).to(tl.pointer_type(tl.float32))
        found = found + (tl.load(row + columns, mask=live & there, other=0.0),)
    return found


@triton.jit
def load_block(table, tasks, first, vector, left, size, ROWS: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Returns `UNROLL` times `BLOCK` columns from `left` on: each time a vector's entries and those of `ROWS` rows."""
    loaded = ()
    for turn in tl.static_range(UNROLL):
        columns = left + turn * BLOCK + tl.arange(0, BLOCK)
        live = columns < size
        x = tl.load(vector + columns, mask=live, other=0.0)
        loaded = loaded + (x, load_rows(table, tasks, first, columns, live, ROWS))
    return loaded


@triton.jit
def zeros(BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """Returns `COUNT` float64 sums for each lane, as a tuple."""
    found = ()
    for _i in tl.static_range(COUNT):
        found = found + (tl.zeros([BLOCK], tl.float64),)
    return found


@triton.jit
def store_sums(sums, partial, program, tile, tiles, ROWS: tl.constexpr):
    """Writes a program's sums, `len(sums) / ROWS` for each of its tile's rows, into `[programs, kinds, T]`."""
    KINDS: tl.constexpr = len(sums) // ROWS
    for kind in tl.static_range(KINDS):
        corner = partial + ((program * KINDS + kind) * tiles + tile) * ROWS
        for i in tl.static_range(ROWS):
            tl.store(corner + i, tl.sum(sums[kind * ROWS + i]))


@triton.jit
def _add_products(sums, x, rows, ROWS: tl.constexpr, NORMS: tl.constexpr):
    """Adds `x row_i`, and with `NORMS` behind them `row_i^2`, to the sums, in float64."""
    added = ()
    for i in tl.static_range(ROWS):
        added = added + (sums[i] + x * rows[i].to(tl.float64),)
    if NORMS:
        for i in tl.static_range(ROWS):
            wide = rows[i].to(tl.float64)
            added = added + (sums[ROWS + i] + wide * wide,)
    return added


@triton.jit
def _combination(total, rows, step, tasks, first, ROWS: tl.constexpr):
    """Returns `total + sum_i step_i row_i` in float64, added in row order."""
    for i in tl.static_range(ROWS):
        factor = tl.load(step + first + i, mask=first + i < tasks, other=0.0)
        total += factor * rows[i].to(tl.float64)
    return total


@triton.jit(
    do_not_specialize=["tasks", "size"],
    do_not_specialize_on_alignment=["table", "vector", "partial"],
)
def products(
    table,
    tasks: tl.int64,
    vector,
    size: tl.int64,
    partial,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Writes the inner products of a vector with each row, and the rows' squared norms, `[programs, 2, tiles * ROWS]`.

    The tiles of the same columns run side by side, so that the vector comes from the L2 cache for all but one.
    """
    tile, tiles = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    program, programs = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    sums = zeros(BLOCK, 2 * ROWS)
    for left in range(program * (BLOCK * UNROLL), size, programs * (BLOCK * UNROLL)):
        loaded = load_block(table, tasks, tile * ROWS, vector, left, size, ROWS, BLOCK, UNROLL)
        for turn in tl.static_range(UNROLL):
            sums = _add_products(sums, loaded[2 * turn].to(tl.float64), loaded[2 * turn + 1], ROWS, True)
    store_sums(sums, partial, program, tile, tiles, ROWS)


@triton.jit(
    do_not_specialize=["tasks", "size"],
    do_not_specialize_on_alignment=["table", "step", "vector", "refined", "partial"],
)
def refine(
    table,
    tasks: tl.int64,
    step,
    vector,
    size: tl.int64,
    refined,
    partial,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Writes `subtract`'s vector, and its inner products with each row, `[programs, 1, ROWS]`; for T <= ROWS.

    The rows stay in registers between the two, so they are read once.
    """
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    lanes = tl.arange(0, BLOCK)
    sums = zeros(BLOCK, ROWS)
    for left in range(program * (BLOCK * UNROLL), size, programs * (BLOCK * UNROLL)):
        loaded = load_block(table, tasks, 0, vector, left, size, ROWS, BLOCK, UNROLL)
        for turn in tl.static_range(UNROLL):
            columns = left + turn * BLOCK + lanes
            total = _combination(tl.zeros([BLOCK], tl.float64), loaded[2 * turn + 1], step, tasks, 0, ROWS)
            rest = (loaded[2 * turn].to(tl.float64) - total).to(tl.float32)
            tl.store(refined + columns, rest, mask=columns < size)
            sums = _add_products(sums, rest.to(tl.float64), loaded[2 * turn + 1], ROWS, False)
    store_sums(sums, partial, program, 0, 1, ROWS)


@triton.jit(
    do_not_specialize=["tasks", "size"],
    do_not_specialize_on_alignment=["table", "step", "vector", "refined"],
)
def subtract(table, tasks: tl.int64, step, vector, size: tl.int64, refined, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Writes a vector less `sum_j step_j row_j`: summed in float64 in row order, rounded once to float32."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    lanes = tl.arange(0, BLOCK)
    for left in range(program * BLOCK, size, programs * BLOCK):
        columns = left + lanes
        live = columns < size
        x = tl.load(vector + columns, mask=live, other=0.0)
        total = tl.zeros([BLOCK], tl.float64)
        for first in range(0, tasks, ROWS):
            rows = load_rows(table, tasks, first, columns, live, ROWS)
            total = _combination(total, rows, step, tasks, first, ROWS)
        tl.store(refined + columns, (x.to(tl.float64) - total).to(tl.float32), mask=live)
