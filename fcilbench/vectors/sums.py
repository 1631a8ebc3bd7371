"""Sums over clients in a fixed order, so that no scheduling changes a bit."""

from __future__ import annotations

import torch


def weighted_sum(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns `sum_i weights[i] * rows[i]`, added one row after the other in row order.

    A matrix product would leave the order of the additions to the linear-algebra library.

    Args:
        weights: `[N]`.
        rows: `[N, D]`.

    Returns:
        `[D]`, of the rows' dtype.

    Raises:
        ValueError: If the shapes do not fit or there is no row.
    """
    if rows.dim() != 2 or weights.shape != rows.shape[:1] or rows.shape[0] == 0:
        raise ValueError(f"weights {tuple(weights.shape)} do not fit rows {tuple(rows.shape)}")
    total = torch.zeros_like(rows[0])
    for weight, row in zip(weights.tolist(), rows, strict=True):
        total.add_(row, alpha=weight)
    return total
