"""Online orthogonal basis of task vectors (temporal SUM: Kim and Do 2026, section 4.3, equation 9).

tau_hat_k = tau_k - sum_{j<k} (<tau_k, tau_hat_j> / ||tau_hat_j||^2) tau_hat_j, with tau_k = theta_G^(k) - theta_pre.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fcilbench.vectors.chunks import columns, spans
from fcilbench.vectors.storage import Stored, read, size_of, stack

Basis = Sequence[torch.Tensor | Stored]
"""tau_hat_1 .. tau_hat_T, each `[D]`, as they are kept."""


def project_out(vector: torch.Tensor, basis: Basis, limit: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Removes from a task vector its components along the earlier, mutually orthogonal basis vectors.

    Gram-Schmidt without normalisation, run twice (re-orthogonalisation), inner products in float64. A zero basis
    vector is skipped. Three passes over the basis: the second run's inner products are taken as the first subtracts.

    Args:
        vector: tau_k, `[D]`.
        basis: tau_hat_1 .. tau_hat_{k-1}, each `[D]`.
        limit: Project on at most so many of them, those with the largest |cosine| to tau_k; ties by index. 0: on none.

    Returns:
        tau_hat_k `[D]` and the coefficients r float64 `[k-1]` with `tau_k = tau_hat_k + sum_j r_j tau_hat_j`, so that
        tau_k need not be stored.
    """
    if not len(basis) or limit == 0:
        return vector.clone(), torch.zeros(len(basis), dtype=torch.float64, device=vector.device)
    inner, norms = products(vector, basis)
    used = norms > 0
    if limit is not None:
        used &= _closest(inner, norms, limit)
    first = torch.where(used, inner / torch.where(used, norms, 1.0), 0.0)
    refined, inner = refine(vector, first, basis)
    second = torch.where(used, inner / torch.where(used, norms, 1.0), 0.0)
    return subtract(refined, second, basis), first + second


def products(vector: torch.Tensor, basis: Basis) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `<vector, tau_hat_j>` and `||tau_hat_j||^2` for each j, float64 `[T]`, in one pass."""
    inner, norms = torch.zeros(2, len(basis), dtype=torch.float64, device=vector.device)
    for span, wide in _wide(basis, vector.device):
        inner += wide @ vector[span].to(torch.float64)
        norms += wide.square_().sum(dim=1)
    return inner, norms


def refine(vector: torch.Tensor, step: torch.Tensor, basis: Basis) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `subtract`'s vector `[D]` and its inner products with the basis, float64 `[T]`, in one pass."""
    refined, inner = torch.empty_like(vector), torch.zeros_like(step)
    for span, wide in _wide(basis, vector.device):
        refined[span] = vector[span].to(torch.float64) - step @ wide
        inner += wide @ refined[span].to(torch.float64)
    return refined, inner


def subtract(vector: torch.Tensor, step: torch.Tensor, basis: Basis) -> torch.Tensor:
    """Returns `vector - sum_j step_j tau_hat_j`, summed in float64 and rounded once, `[D]`, in one pass.

    Args:
        vector: `[D]`.
        step: float64 `[T]`.
        basis: tau_hat_1 .. tau_hat_T.
    """
    refined = torch.empty_like(vector)
    for span, wide in _wide(basis, vector.device):
        refined[span] = vector[span].to(torch.float64) - step @ wide
    return refined


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


def _wide(basis: Basis, device: torch.device) -> Iterator[tuple[slice, torch.Tensor]]:
    """Iterates over the basis in float64 `[T, c]`; a piece is valid until the next one."""
    buffer = torch.empty(0)
    for span in spans(size_of(basis[0]), columns(len(basis), device)):
        shape = len(basis), span.stop - span.start
        buffer = buffer if buffer.shape == shape else torch.empty(shape, dtype=torch.float64, device=device)
        for row, vector in zip(buffer, basis, strict=True):
            row.copy_(read(vector, span))
        yield span, buffer


def _closest(inner: torch.Tensor, norms: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns which basis vectors have the `limit` largest |cosines|, bool `[T]`."""
    # The norm of tau_k is the same for all of them.
    closeness = torch.where(norms > 0, inner.abs() / norms.clamp(min=torch.finfo(norms.dtype).tiny).sqrt(), -1.0)
    chosen = torch.zeros_like(norms, dtype=torch.bool)
    chosen[closeness.argsort(descending=True, stable=True)[:limit]] = True
    return chosen
