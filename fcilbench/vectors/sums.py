"""Sums over clients in a fixed order, so that every run gives the same bits, and in pieces that fit the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 25}
"""Numbers in a piece: on a CPU a piece stays in the cache between operations; on a GPU few launches are faster."""
_ALIGNED = 1 << 12
"""Pieces begin at multiples of this, which bitmaps and quantised blocks divide."""


def weighted_sum(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns `sum_i weights[i] * rows[i]` in one pass; each coordinate is added in row order.

    Weights are `[N]`, rows `[N, D]`, and the result `[D]` has the rows' dtype. A matrix product would leave the order
    of the additions to the linear-algebra library.
    """
    total, factors = rows.new_zeros(rows.shape[1]), weights.tolist()
    for span in spans(rows.shape[1], columns(len(rows), rows.device)):
        add_rows(total[span], factors, rows[:, span])
    return total


def client_weights(shares: torch.Tensor, weighting: str) -> torch.Tensor:
    """Returns the clients' weights `[N]`: their shares of the samples, or equal ones for `uniform`."""
    return torch.full((len(shares),), 1.0 / len(shares)) if weighting == "uniform" else shares


def add_rows(out: torch.Tensor, factors: list[float], piece: torch.Tensor) -> None:
    """Adds `factors[i] * piece[i]` to `out` `[c]` in place, one row after the other."""
    for factor, row in zip(factors, piece, strict=True):
        out.add_(row, alpha=factor)


def columns(rows: int, device: torch.device) -> int:
    """Returns the number of columns of a piece with `rows` rows."""
    count = _ELEMENTS.get(device.type, _ELEMENTS["cuda"]) // max(rows, 1)
    return max(_ALIGNED, count // _ALIGNED * _ALIGNED)


def spans(size: int, step: int, start: int = 0) -> Iterator[slice]:
    """Iterates over `start..start + size` in slices of at most `step`."""
    for left in range(start, start + size, step):
        yield slice(left, min(left + step, start + size))
