"""Z-score trimming of update vectors (the paper, spatial SUM; specs/sum.md, section 1, step 2)."""

from __future__ import annotations

import torch


def trim(rows: torch.Tensor, threshold: float | None) -> torch.Tensor:
    """Sets to zero what lies more than `threshold` population standard deviations from its row's mean.

    Args:
        rows: `[N, D]`; left unchanged.
        threshold: z_thr > 0; `None` trims nothing.

    Returns:
        `[N, D]`; `rows` itself where nothing is trimmed by request. A row without spread (sigma = 0) stays as it is.
    """
    if threshold is None:
        return rows
    if threshold <= 0:
        raise ValueError(f"z_thr must be > 0, got {threshold}")
    trimmed = rows.clone()
    for row in trimmed:
        variance, mean = torch.var_mean(row, correction=0)
        sigma = variance.sqrt()
        row[((row - mean).abs() > threshold * sigma) & (sigma > 0)] = 0.0
    return trimmed
