"""Class means of features: sums by class, the rows of the classes that are present, and the nearest mean as a head."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F

MISSING = -1e30
"""Bias of a class without samples: below every logit, and finite in every precision but fp16."""


def class_sums(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]], classes: int, features: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns sums `[c, F]` and counts `[c]` by class, float64, of batches of features `[n, F]` with labels `[n]`."""
    sums, counts = torch.zeros(classes, features, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    for rows, labels in batches:
        # A product: scattered additions have no fixed order on a GPU.
        member = F.one_hot(labels, classes).to(torch.float64)
        sums = sums.to(rows.device) + member.T @ rows.to(torch.float64)
        counts = counts.to(rows.device) + member.sum(dim=0)
    return sums, counts


def scatter_rows(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns float64 `[c, ...]` with `rows` in the places of the classes that have a count, and zeros elsewhere.

    It undoes `rows[counts > 0]`, in which form classes are sent: absent classes cost their count only.
    """
    full = torch.zeros(len(counts), *rows.shape[1:], dtype=torch.float64, device=rows.device)
    full[counts > 0] = rows.to(torch.float64)
    return full


def nearest_mean_head(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns the linear classifier that ranks classes by the distance of their feature mean.

    With mu_c the mean of class c and m that of all samples, `(mu_c - m) f - (mu_c - m) m - ||mu_c - m||^2 / 2` is
    `-||f - mu_c||^2 / 2` up to a term that is the same for all classes; centring keeps digits in low precision. A class
    without samples is never the nearest. Returns weight `[C, F]` then bias `[C]`, float32 `[C F + C]` as `Layout.head`.
    """
    wide, count = sums.to(torch.float64), counts.to(torch.float64)
    centre = wide.sum(dim=0) / count.sum().clamp(min=1)
    known = count > 0
    mean = torch.where(known[:, None], wide / count.clamp(min=1)[:, None] - centre, 0.0)
    bias = torch.where(known, -(mean @ centre) - (mean * mean).sum(dim=1) / 2, MISSING)
    return torch.cat([mean.flatten(), bias]).to(torch.float32)
