"""Algebra of diagonal Fishers `[P]`: pooling clients, weighting a merge, and the quadratic penalty of EWC."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

_CHUNK = 1 << 20


def pool(fishers: Iterable[torch.Tensor], samples: Sequence[int]) -> torch.Tensor:
    """Returns the mean Fisher over all clients' samples, `sum_k n_k F_k / sum_k n_k`, accumulated in float64.

    At one common model it equals the Fisher of the pooled data.

    Args:
        fishers: Mean Fisher of each client, `[P]`.
        samples: n_k of each.
    """
    count = sum(samples)
    parts = iter(fishers)
    first = next(parts)
    total = first.to(torch.float64) * (samples[0] / count)
    for fisher, own in zip(parts, samples[1:], strict=True):
        total.add_(fisher, alpha=own / count)
    return total.to(first.dtype)


def unit(fisher: torch.Tensor) -> torch.Tensor:
    """Returns a Fisher divided by its L2 norm; the zero Fisher stays as it is."""
    norm = math.sqrt(sum((float(chunk.double().square().sum()) for chunk in torch.split(fisher, _CHUNK)), 0.0))
    return fisher / norm if norm > 0.0 else fisher


def merge(
    deltas: torch.Tensor, fishers: Sequence[torch.Tensor], weights: Sequence[float], epsilon: float
) -> torch.Tensor:
    """Returns per coordinate `sum_k w_k delta_k` with `w_k = l_k (F_k + eps) / sum_j l_j (F_j + eps)`, in float64.

    Where all of these are 0, the weights are `l_k / sum_j l_j`.

    Args:
        deltas: Updates, `[N, P]`; left unchanged.
        fishers: Non-negative, each `[P]`.
        weights: l_k > 0 of each client.
        epsilon: Added to every Fisher.

    Returns:
        `[P]`, of the deltas' dtype, between the smallest and the largest update in each coordinate.
    """
    factors = torch.tensor(weights, dtype=torch.float64, device=deltas.device)[:, None]
    merged = torch.empty_like(deltas[0])
    step = max(1, _CHUNK // len(deltas))
    for start in range(0, merged.numel(), step):
        part = slice(start, start + step)
        precision = factors * (torch.stack([fisher[part] for fisher in fishers]).double() + epsilon)
        total = precision.sum(dim=0)
        share = torch.where(total > 0, precision / total, factors / factors.sum()).clamp_(0.0, 1.0)
        merged[part] = (share * deltas[:, part]).sum(dim=0)
    return merged


def add_penalty_gradient(
    gradient: torch.Tensor, theta: torch.Tensor, fisher: torch.Tensor, anchor: torch.Tensor, strength: float
) -> None:
    """Adds `2 strength F (theta - anchor)`, the gradient of `strength sum_j F_j (theta_j - anchor_j)^2`, in place.

    The convention of fed-mammoth and Mammoth; Kirkpatrick et al. write half of this penalty.

    Args:
        gradient: `[P]`; changed.
        theta: `[P]`.
        fisher: F, `[P]`.
        anchor: `[P]`.
        strength: lambda.
    """
    gradient.addcmul_(fisher, theta - anchor, value=2.0 * strength)
