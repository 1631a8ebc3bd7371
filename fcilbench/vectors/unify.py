"""The inference-ready module: sparsify, elect, mask and scale (the paper; specs/sum.md, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch


def top_k(vector: torch.Tensor, fraction: float) -> torch.Tensor:
    """Keeps the `max(1, floor(fraction * D))` entries of largest magnitude and sets the others to zero.

    The count is exact; among equal magnitudes the lower index is kept.

    Args:
        vector: `[D]`; left unchanged.
        fraction: k_pct in (0, 1].
    """
    # As decimals: in binary 0.29 * 100 is below 29.
    count = max(1, int(Fraction(repr(fraction)) * vector.numel()))
    if count >= vector.numel():
        return vector.clone()
    magnitude = vector.abs()
    threshold = torch.topk(magnitude, count).values[-1]
    keep = magnitude > threshold
    ties = torch.nonzero(magnitude == threshold)[: count - int(keep.sum()), 0]
    keep[ties] = True
    return torch.where(keep, vector, 0.0)


def elect(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tau_uni `[D]`: per coordinate the majority sign and the largest magnitude that agrees with it.

    The majority counts non-zero signs; a tie gives 0.

    Args:
        vectors: The sparsified basis vectors, each `[D]`.
    """
    votes = torch.zeros_like(vectors[0])
    largest, smallest = torch.zeros_like(vectors[0]), torch.zeros_like(vectors[0])
    for vector in vectors:
        votes += vector.sign()
        largest = torch.maximum(largest, vector)
        smallest = torch.minimum(smallest, vector)
    return torch.where(votes > 0, largest, torch.where(votes < 0, smallest, 0.0))


def mask_and_scale(task: torch.Tensor, unified: torch.Tensor, eps: float = 1e-12) -> tuple[torch.Tensor, float]:
    """Returns m = [task * unified > 0] (bool `[D]`) and s = ||task||_1 / (||m * unified||_1 + eps).

    Args:
        task: tau_k or tau_hat_k, `[D]`.
        unified: tau_uni, `[D]`.
        eps: Keeps an empty mask finite.
    """
    # Signs instead of the product, which underflows where both entries are tiny.
    mask = (task.sign() * unified.sign()) > 0
    size = task.abs().sum(dtype=torch.float64)
    agreed = torch.where(mask, unified, 0.0).abs().sum(dtype=torch.float64)
    return mask, float(size / (agreed + eps)) if bool(mask.any()) else 0.0


def restore(unified: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns the deployed task vector `mask * scale * unified`, `[D]`."""
    return torch.where(mask, unified * scale, 0.0)
