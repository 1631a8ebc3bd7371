"""Sums over clients in a fixed order, so that no scheduling changes a bit."""

from __future__ import annotations

import torch

from fcilbench.vectors.chunks import Rows, pieces


def weighted_sum(weights: torch.Tensor, rows: torch.Tensor | Rows) -> torch.Tensor:
    """Returns `sum_i weights[i] * rows[i]` in one pass, for each coordinate added in row order.

    A matrix product would leave the order of the additions to the linear-algebra library.

    Args:
        weights: `[N]`.
        rows: `[N, D]`.

    Returns:
        `[D]`, of the rows' dtype.

    Raises:
        ValueError: If the shapes do not fit or there is no row.
    """
    shape = tuple(rows.shape)
    if len(shape) != 2 or tuple(weights.shape) != shape[:1] or shape[0] == 0:
        raise ValueError(f"weights {tuple(weights.shape)} do not fit rows {shape}")
    like = rows if isinstance(rows, torch.Tensor) else rows.like
    total = like.new_zeros(shape[1])
    factors = weights.tolist()
    for span, piece in pieces(rows):
        add_rows(total[span], factors, piece)
    return total


def add_rows(out: torch.Tensor, factors: list[float], piece: torch.Tensor) -> None:
    """Adds `factors[i] * piece[i]` to `out` `[c]` in place, one row after the other."""
    for factor, row in zip(factors, piece, strict=True):
        out.add_(row, alpha=factor)
