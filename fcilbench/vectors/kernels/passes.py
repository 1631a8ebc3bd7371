"""Triton kernels of spatial SUM over rows `[N, D]`: statistics and merge; the Gram matrix is in `pairs`.

Each program strides over blocks of columns and writes partial results of its own: no atomics, so every sum has one
order. Column offsets are int64, as N x D passes 2^31. Sizes, strides and alignments are not specialised: one binary
per N is compiled, the one that was checked.

An entry is trimmed by a product with 0 or 1, as in the torch path, so that a NaN stays a NaN. All steps that decide
(difference, magnitude, comparison) round once in float32 there and here, so equal bounds trim equal entries.
"""

# Triton's language is Python in syntax only: untyped, and without starred tuples or keyword-only arguments.
# mypy: ignore-errors
# ruff: noqa: PLR0917, RUF005

import triton
import triton.language as tl


@triton.jit
def inside_of(x, mean, reach, row, N: tl.constexpr):
    """Returns whether entries of a row stay."""
    return tl.abs(x - tl.load(mean + row, mask=row < N)) <= tl.load(reach + row, mask=row < N)


@triton.jit
def _add_deviations(row, left, live, centre, total, square, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Adds deviations from `centre` and their squares; up to column `live`, or of a whole step if it is None."""
    lanes = tl.arange(0, BLOCK)
    loaded = ()
    for step in tl.static_range(UNROLL):
        columns = left + step * BLOCK + lanes
        if live is None:
            loaded = loaded + (tl.load(row + columns),)
        else:
            loaded = loaded + (tl.load(row + columns, mask=columns < live, other=0.0),)
    for step in tl.static_range(UNROLL):
        x = loaded[step].to(tl.float64) - centre
        if live is not None:
            x = tl.where(left + step * BLOCK + lanes < live, x, 0.0)
        total += x
        square += x * x
    return total, square


@triton.jit(
    do_not_specialize=["stride", "size"],
    do_not_specialize_on_alignment=["rows", "counts", "means", "squares"],
)
def statistics(
    rows, stride: tl.int64, size: tl.int64, counts, means, squares, BLOCK: tl.constexpr, UNROLL: tl.constexpr
):
    """Writes count, mean and sum of squared deviations of each program's columns, `[programs, N]` each.

    The entries are centred on the mean of the program's first block before they are squared. With that block a share
    f of the columns, the distance of the two means is at most sqrt(1/f - 1) standard deviations, which bounds what the
    last subtraction can cost: a factor 1/f of float64's rounding.
    """
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    index = tl.program_id(1).to(tl.int64)
    row = rows + index * stride
    step: tl.constexpr = BLOCK * UNROLL
    full, first = size // step * step, program * step
    lanes = tl.arange(0, step)
    head = tl.load(row + first + lanes, mask=first + lanes < size, other=0.0).to(tl.float64)
    centre = tl.sum(head) / tl.maximum(tl.minimum(size - first, step), 1).to(tl.float64)
    entries = tl.zeros([], tl.int64)
    total = tl.zeros([BLOCK], tl.float64)
    square = tl.zeros([BLOCK], tl.float64)
    for left in range(first, full, programs * step):
        total, square = _add_deviations(row, left, None, centre, total, square, BLOCK, UNROLL)
        entries += step
    if (full < size) & (full // step % programs == program):
        total, square = _add_deviations(row, full, size, centre, total, square, BLOCK, UNROLL)
        entries += size - full
    number = entries.to(tl.float64)
    shift = tl.sum(total) / tl.maximum(number, 1.0)
    at = program * tl.num_programs(1) + index
    tl.store(counts + at, number)
    tl.store(means + at, centre + shift)
    tl.store(squares + at, tl.maximum(tl.sum(square) - number * shift * shift, 0.0))


@triton.jit
def _add_rows(
    rows, stride, first, columns, live, mean, reach, weights, total, plain, out, ROWS: tl.constexpr, N: tl.constexpr
):
    """Adds `ROWS` trimmed rows from `first` on to their weighted and to their plain sum, in order."""
    loaded = ()
    for i in tl.static_range(ROWS):
        pointers = rows + (first + i) * stride + columns
        loaded = loaded + (tl.load(pointers, mask=live, other=None if live is None else 0.0),)
    for i in tl.static_range(ROWS):
        inside = inside_of(loaded[i], mean, reach, first + i, N)
        gone = inside == 0 if live is None else live & (inside == 0)
        out += gone.to(tl.int32)
        x = inside.to(tl.float32) * loaded[i]
        total = tl.fma(x, tl.load(weights + first + i), total)
        plain += x
    return total, plain, out


@triton.jit
def _merge_block(
    rows, stride, columns, live, mean, reach, weights, merged, turned, out, N: tl.constexpr, ROWS: tl.constexpr
):
    """Merges one block of columns; `live` is None in a block that is full."""
    total = tl.zeros(columns.shape, tl.float32)
    plain = tl.zeros(columns.shape, tl.float32)
    for first in range(0, N // ROWS * ROWS, ROWS):
        total, plain, out = _add_rows(
            rows, stride, first, columns, live, mean, reach, weights, total, plain, out, ROWS, N
        )
    total, plain, out = _add_rows(
        rows, stride, N // ROWS * ROWS, columns, live, mean, reach, weights, total, plain, out, N % ROWS, N
    )
    tl.store(merged + columns, total, mask=live)
    return turned + (((total > 0) & (plain < 0)) | ((total < 0) & (plain > 0))).to(tl.int32), out


@triton.jit(
    do_not_specialize=["stride", "size"],
    do_not_specialize_on_alignment=["rows", "mean", "reach", "weights", "merged", "flips", "zeroed"],
)
def merge(
    rows,
    stride: tl.int64,
    size: tl.int64,
    mean,
    reach,
    weights,
    merged,
    flips,
    zeroed,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes the weighted sum of the trimmed rows `[D]`, and per program its sign flips and the trimmed entries.

    Each coordinate is added in row order in float32 with fused multiply-adds, as `add_` with `alpha` does in torch.
    """
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    lanes = tl.arange(0, BLOCK)
    full = size // BLOCK * BLOCK
    turned = tl.zeros([BLOCK], tl.int32)
    out = tl.zeros([BLOCK], tl.int32)
    for left in range(program * BLOCK, full, programs * BLOCK):
        turned, out = _merge_block(rows, stride, left + lanes, None, mean, reach, weights, merged, turned, out, N, ROWS)
    if (full < size) & (full // BLOCK % programs == program):
        columns = full + lanes
        turned, out = _merge_block(
            rows, stride, columns, columns < size, mean, reach, weights, merged, turned, out, N, ROWS
        )
    tl.store(flips + program, tl.sum(turned.to(tl.int64)))
    tl.store(zeroed + program, tl.sum(out.to(tl.int64)))


@triton.jit(do_not_specialize=["programs", "size"], do_not_specialize_on_alignment=["partial", "total"])
def fold(partial, total, programs: tl.int64, size: tl.int64, BLOCK: tl.constexpr):
    """Sums float64 `[programs, size]` over the programs, an entry each, in an order that the compiler fixes."""
    index = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float64)
    for first in range(0, programs, BLOCK):
        sums += tl.load(partial + (first + lanes) * size + index, mask=first + lanes < programs, other=0.0)
    tl.store(total + index, tl.sum(sums))
