"""Nearest class mean as a linear head."""

from __future__ import annotations

import torch

_NEVER = -1e30
"""Score of a class without samples: below any other, and finite in every precision but fp16."""


def nearest_mean_head(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns the linear classifier that ranks classes by the distance of their feature mean.

    With mu_c the mean of class c and m that of all samples, `(mu_c - m) f - (mu_c - m) m - ||mu_c - m||^2 / 2` is
    `-||f - mu_c||^2 / 2` up to a term that is the same for all classes. Centring keeps the digits that low precision
    would lose.

    Args:
        sums: Sum of the features of each class, `[C, F]`.
        counts: Samples of each class, `[C]`; a class without any is never the nearest.

    Returns:
        Weight `[C, F]` then bias `[C]`, flattened float32 `[C F + C]`, as `Layout.head` is laid out.
    """
    wide, count = sums.to(torch.float64), counts.to(torch.float64)
    centre = wide.sum(dim=0) / count.sum().clamp(min=1)
    known = count > 0
    mean = torch.where(known[:, None], wide / count.clamp(min=1)[:, None] - centre, 0.0)
    bias = torch.where(known, -(mean @ centre) - (mean * mean).sum(dim=1) / 2, _NEVER)
    return torch.cat([mean.flatten(), bias]).to(torch.float32)
