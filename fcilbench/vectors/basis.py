"""Online orthogonal basis of task vectors (the paper, temporal SUM; specs/sum.md, section 2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def project_out(vector: torch.Tensor, basis: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Removes from a task vector its components along the earlier, mutually orthogonal basis vectors.

    Gram-Schmidt without normalisation, run twice (re-orthogonalisation), inner products in float64. A zero basis
    vector is skipped.

    Args:
        vector: tau_k, `[D]`.
        basis: tau_hat_1 .. tau_hat_{k-1}, each `[D]`.

    Returns:
        tau_hat_k `[D]` and the coefficients r float64 `[k-1]` with `tau_k = tau_hat_k + sum_j r_j tau_hat_j`, so that
        tau_k need not be stored.
    """
    refined = vector.clone()
    kept = torch.zeros(len(basis), dtype=torch.float64)
    for _ in range(2):
        for j, direction in enumerate(basis):
            norm = dot(direction, direction)
            if norm > 0.0:
                coefficient = dot(refined, direction) / norm
                refined.sub_(direction, alpha=coefficient)
                kept[j] += coefficient
    return refined, kept


def rebuild(index: int, basis: Sequence[torch.Tensor], coefficients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tau_index `[D]` from the basis and the kept coefficients: the inverse of `project_out`."""
    vector = basis[index].clone()
    for coefficient, direction in zip(coefficients[index].tolist(), basis[:index], strict=True):
        vector.add_(direction, alpha=coefficient)
    return vector


def dot(left: torch.Tensor, right: torch.Tensor) -> float:
    """Returns the inner product, accumulated in float64 over chunks."""
    pairs = zip(torch.split(left, 1 << 22), torch.split(right, 1 << 22), strict=True)
    return float(sum((a.double() @ b.double() for a, b in pairs), torch.zeros((), dtype=torch.float64)))
