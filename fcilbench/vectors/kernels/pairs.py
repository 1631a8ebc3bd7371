"""Triton kernel of the Gram matrix of trimmed rows `[N, D]`, in float64."""

# See `passes`.
# mypy: ignore-errors
# ruff: noqa: PLR0917, RUF005

import triton
import triton.language as tl

from fcilbench.vectors.kernels.passes import inside_of


@triton.jit
def _load(rows, stride, first, columns, size, ROWS: tl.constexpr, N: tl.constexpr):
    """Returns the entries of `ROWS` rows from `first` on, as a tuple; 0 outside of the matrix."""
    found = ()
    for i in tl.static_range(ROWS):
        live = (columns < size) & (first + i < N)
        found = found + (tl.load(rows + (first + i) * stride + columns, mask=live, other=0.0),)
    return found


@triton.jit
def _trim(loaded, first, live, mean, reach, out, ROWS: tl.constexpr, N: tl.constexpr):
    """Returns the trimmed entries in float64, as a tuple, and adds to `out` how many of the matrix are trimmed."""
    found = ()
    for i in tl.static_range(ROWS):
        inside = inside_of(loaded[i], mean, reach, first + i, N)
        out += (live & (first + i < N) & (inside == 0)).to(tl.int32)
        found = found + ((inside.to(tl.float32) * loaded[i]).to(tl.float64),)
    return found, out


@triton.jit
def _add_products(sums, xs, ys, TILE: tl.constexpr, TILES: tl.constexpr):
    """Adds `x_i y_j` to the sums of all pairs; with one tile of those with i <= j."""
    added = ()
    for i in tl.static_range(TILE):
        for j in tl.static_range(i if TILES == 1 else 0, TILE):
            added = added + (sums[len(added)] + xs[i] * ys[j],)
    return added


@triton.jit(
    do_not_specialize=["stride", "size"],
    do_not_specialize_on_alignment=["rows", "mean", "reach", "products", "zeroed"],
)
def gram(
    rows,
    stride: tl.int64,
    size: tl.int64,
    mean,
    reach,
    products,
    zeroed,
    N: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Writes the products of the trimmed rows of two tiles, and how many entries of the rows are trimmed.

    A thread keeps one float64 sum for each pair of rows, so the rows are read once if they fit one tile; else tile
    pairs of the same columns run side by side and meet in the L2 cache. `products` is `[programs, TILES * TILE,
    TILES * TILE]`, of which the upper triangle is written; `zeroed` is `[programs, TILES]`.
    """
    one, two = 0, 0
    if TILES > 1:
        one, two = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    if one > two:
        return
    program, programs = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    lanes = tl.arange(0, BLOCK)
    out, unused = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    sums = ()
    for _pair in tl.static_range(TILE * (TILE + 1) // 2 if TILES == 1 else TILE * TILE):
        sums = sums + (tl.zeros([BLOCK], tl.float64),)
    for left in range(program * (BLOCK * UNROLL), size, programs * (BLOCK * UNROLL)):
        # All loads come before the arithmetic: what is under way at once decides the bandwidth.
        loaded = ()
        for step in tl.static_range(UNROLL):
            columns = left + step * BLOCK + lanes
            own = _load(rows, stride, one * TILE, columns, size, TILE, N)
            loaded = loaded + (own, own if TILES == 1 else _load(rows, stride, two * TILE, columns, size, TILE, N))
        for step in tl.static_range(UNROLL):
            live = left + step * BLOCK + lanes < size
            xs, out = _trim(loaded[2 * step], one * TILE, live, mean, reach, out, TILE, N)
            ys = xs
            if TILES > 1:
                ys, unused = _trim(loaded[2 * step + 1], two * TILE, live, mean, reach, unused, TILE, N)
            sums = _add_products(sums, xs, ys, TILE, TILES)
    width = TILE * TILES
    corner = products + program * (width * width) + one * TILE * width + two * TILE
    for i in tl.static_range(TILE):
        for j in tl.static_range(i if TILES == 1 else 0, TILE):
            total = tl.sum(sums[i * TILE - i * (i + 1) // 2 + j if TILES == 1 else i * TILE + j])
            tl.store(corner + i * width + j, total)
    if one == two:
        tl.store(zeroed + program * TILES + one, tl.sum(out.to(tl.int64)))
