"""Online orthogonal basis of task vectors (temporal SUM: Kim and Do 2026, section 4.3, equation 9).

tau_hat_k = tau_k - sum_{j<k} (<tau_k, tau_hat_j> / ||tau_hat_j||^2) tau_hat_j, with tau_k = theta_G^(k) - theta_pre.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fcilbench.vectors.chunks import columns, spans
from fcilbench.vectors.storage import Stored, read, size_of, stack

Basis = Sequence[torch.Tensor | Stored]
"""tau_hat_1 .. tau_hat_T, each `[D]`, as they are kept."""


def project_out(vector: torch.Tensor, basis: Basis, limit: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Removes from a task vector its components along the earlier, mutually orthogonal basis vectors.

    Gram-Schmidt without normalisation, run twice (re-orthogonalisation), inner products in float64. A zero basis
    vector is skipped.

    Args:
        vector: tau_k, `[D]`.
        basis: tau_hat_1 .. tau_hat_{k-1}, each `[D]`.
        limit: Project on at most so many of them, those with the largest |cosine| to tau_k; ties by index. 0: on none.

    Returns:
        tau_hat_k `[D]` and the coefficients r float64 `[k-1]` with `tau_k = tau_hat_k + sum_j r_j tau_hat_j`, so that
        tau_k need not be stored.
    """
    refined = vector.clone()
    kept = torch.zeros(len(basis), dtype=torch.float64, device=vector.device)
    if not len(basis) or limit == 0:
        return refined, kept
    norms = squared_norms(basis)
    used = norms > 0
    for turn in range(2):
        inner = inner_products(refined, basis)
        if turn == 0 and limit is not None:
            used &= _closest(inner, norms, limit)
        step = torch.where(used, inner / torch.where(used, norms, 1.0), 0.0)
        _subtract(refined, step, basis)
        kept += step
    return refined, kept


def inner_products(vector: torch.Tensor, basis: Basis) -> torch.Tensor:
    """Returns `<vector, tau_hat_j>` for each j, float64 `[T]`, in one pass."""
    total = torch.zeros(len(basis), dtype=torch.float64, device=vector.device)
    for span in _spans(basis, vector.device):
        total += stack(basis, span).to(torch.float64) @ vector[span].to(torch.float64)
    return total


def squared_norms(basis: Basis) -> torch.Tensor:
    """Returns `||tau_hat_j||^2` for each j, float64 `[T]`, in one pass."""
    norms = []
    for vector in basis:
        pieces = (read(vector, span).to(torch.float64) for span in _spans([vector], _device(vector)))
        norms.append(sum((piece @ piece for piece in pieces), torch.zeros((), dtype=torch.float64)))
    return torch.stack([norm.to(_device(basis[0])) for norm in norms])


def accumulated(pieces: torch.Tensor, index: int, coefficients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tau_index on some columns: the inverse of `project_out`.

    Args:
        pieces: tau_hat_1 .. on these columns, `[>= index + 1, c]`.
        index: k - 1.
        coefficients: What `project_out` kept, for each task.
    """
    vector = pieces[index].clone()
    for coefficient, direction in zip(coefficients[index].tolist(), pieces[:index], strict=True):
        vector.add_(direction, alpha=coefficient)
    return vector


def rebuild(index: int, basis: Basis, coefficients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tau_index `[D]` from the basis and the kept coefficients."""
    return accumulated(stack(basis[: index + 1], slice(0, size_of(basis[0]))), index, coefficients)


def _spans(basis: Basis, device: torch.device) -> Sequence[slice]:
    return list(spans(size_of(basis[0]), columns(len(basis), device)))


def _device(vector: torch.Tensor | Stored) -> torch.device:
    device: torch.device = vector.device if isinstance(vector, torch.Tensor) else vector["values"].device
    return device


def _subtract(vector: torch.Tensor, step: torch.Tensor, basis: Basis) -> None:
    for span in _spans(basis, vector.device):
        vector[span] -= (step @ stack(basis, span).to(torch.float64)).to(vector.dtype)


def _closest(inner: torch.Tensor, norms: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns which basis vectors have the `limit` largest |cosines|, bool `[T]`."""
    # The norm of tau_k is the same for all of them.
    closeness = torch.where(norms > 0, inner.abs() / norms.clamp(min=torch.finfo(norms.dtype).tiny).sqrt(), -1.0)
    chosen = torch.zeros_like(norms, dtype=torch.bool)
    chosen[closeness.argsort(descending=True, stable=True)[:limit]] = True
    return chosen
