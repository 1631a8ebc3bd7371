"""Sums of features by class, and the rows of the classes that are present."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F


def class_sums(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]], classes: int, features: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums features by class in float64.

    Args:
        batches: Features `[n, F]` and labels in `0..classes-1` `[n]`.
        classes: Number of classes c.
        features: Number of features F.

    Returns:
        Sums float64 `[c, F]` and counts float64 `[c]`, on the features' device.
    """
    sums, counts = torch.zeros(classes, features, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    for rows, labels in batches:
        member = F.one_hot(labels, classes).to(torch.float64)
        sums = sums.to(rows.device) + member.T @ rows.to(torch.float64)
        counts = counts.to(rows.device) + member.sum(dim=0)
    return sums, counts


def scatter_rows(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns float64 `[c, ...]` with `rows` in the places of the classes that have a count, and zeros elsewhere.

    The inverse of `rows[counts > 0]`, the form in which classes travel: absent classes cost their count only.
    """
    full = torch.zeros(len(counts), *rows.shape[1:], dtype=torch.float64, device=rows.device)
    full[counts > 0] = rows.to(torch.float64)
    return full
