"""Runs the kernels on whole matrices: how many programs, and how their partial results become one.

Nothing here looks at the device: the number of programs depends on N and D alone, and floats are added in one order,
so equal cards give equal bits whatever else they do.
"""

from __future__ import annotations

import torch

from fcilbench.vectors.kernels import pairs, passes

PROGRAMS = 1 << 12
"""At most so many: some waves over the card, so that the last, uneven one costs little."""
ITERATIONS = 16
"""Blocks that a program should at least have, so that its own last sums cost little."""
THREADS = 128
"""Of a program of statistics and merge."""
COLUMNS = 8
"""Columns of a row that a thread of the statistics loads at once."""
BLOCK = 4 * THREADS
"""Columns in a step of the merge."""
GROUP = 4
"""Rows that the merge loads at once."""
LANES = 64
"""Columns in a step of the Gram matrix: one for each thread, which is left with registers for the pairs."""
WHOLE = 12
"""Up to so many rows a thread's 255 registers hold all pairs of rows, 78 sums in float64."""
TILE = 8
"""Beyond, rows in a tile: 64 sums for the pairs of two tiles."""
SUMS = 512
"""Partial results that are summed at once."""
LOADS = 32
"""Entries that a thread of the Gram matrix asks for before it computes."""


def statistics(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and population standard deviation of each row, float64 `[N]`, in one pass.

    Nothing leaves float64, so rows whose squares float32 cannot hold (beyond 1e19, below 1e-22) have a sigma too.
    """
    (count, size), programs = rows.shape, share(rows.shape[1], THREADS * COLUMNS, PROGRAMS // 4)
    partial = rows.new_empty(3, programs, count, dtype=torch.float64)
    passes.statistics[(programs, count)](
        *(rows, rows.stride(0), size, *partial),
        **{"BLOCK": THREADS, "UNROLL": COLUMNS, "num_warps": THREADS // 32},
    )
    counts, means, squares = partial
    mean = fold(counts * means) / size
    # Chan's formula for any number of parts.
    return mean, (fold(squares + counts * (means - mean).square()) / size).sqrt()


def gram(rows: torch.Tensor, mean: torch.Tensor, reach: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the Gram matrix of the trimmed rows, float64 `[N, N]`, and how many entries are trimmed, int64 `[]`.

    Args:
        rows: `[N, D]`.
        mean: The middle of each row, float32 `[N]`.
        reach: How far from it an entry may lie, float32 `[N]`.
    """
    count, size = rows.shape
    tiles = 1 if count <= WHOLE else -(-count // TILE)
    tile = -(-count // tiles)
    unroll = max(1, min(8, LOADS // (tile if tiles == 1 else 2 * tile)))
    programs = share(size, LANES * unroll, PROGRAMS >> (tiles - 1).bit_length())
    products = rows.new_zeros(programs, tile * tiles, tile * tiles, dtype=torch.float64)
    zeroed = rows.new_empty(programs, tiles, dtype=torch.int64)
    pairs.gram[(tiles**2, programs)](
        *(rows, rows.stride(0), size, mean, reach, products, zeroed),
        **{"N": count, "TILE": tile, "TILES": tiles, "BLOCK": LANES, "UNROLL": unroll, "num_warps": LANES // 32},
    )
    upper = fold(products)[:count, :count].triu()
    return upper + upper.triu(1).T, zeroed.sum()


def merge(
    weights: torch.Tensor, rows: torch.Tensor, mean: torch.Tensor, reach: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the weighted sum of the trimmed rows `[D]`, its sign flips and how many entries are trimmed, int64 `[]`.

    Args:
        weights: `[N]`.
        rows: `[N, D]`.
        mean: The middle of each row, float32 `[N]`.
        reach: How far from it an entry may lie, float32 `[N]`.
    """
    (count, size), programs = rows.shape, share(rows.shape[1], BLOCK, PROGRAMS)
    merged = rows.new_empty(size)
    flips, zeroed = rows.new_empty(2, programs, dtype=torch.int64)
    passes.merge[(programs,)](
        *(rows, rows.stride(0), size, mean, reach, weights.to(rows), merged, flips, zeroed),
        **{"N": count, "ROWS": GROUP, "BLOCK": BLOCK, "num_warps": THREADS // 32},
    )
    return merged, flips.sum(), zeroed.sum()


def share(size: int, columns: int, most: int) -> int:
    """Returns how many programs share `size` columns in steps of `columns`: a power of two."""
    wanted = max(1, size // (columns * ITERATIONS))
    return min(most, 1 << (wanted.bit_length() - 1))


def fold(partial: torch.Tensor) -> torch.Tensor:
    """Sums float64 over the first dimension, the programs."""
    total = partial.new_empty(partial.shape[1:])
    passes.fold[(total.numel(),)](partial, total, len(partial), total.numel(), BLOCK=SUMS, num_warps=4)
    return total
