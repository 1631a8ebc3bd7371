"""RegMean (Jin et al. 2023): merge a linear layer by least squares on the clients' own inputs.

W = W_bar + (sum_k (W_k - W_bar) G_k) (sum_k G_k)^+ with W_bar = sum_k p_k W_k: the residual form, ours.
It equals the published closed form where the sum is invertible, keeps FedAvg in its null directions, and leaves rows
that no client moved exactly where they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

_NUMBERS = 1 << 20
"""Numbers of the clients' matrices that are widened to float64 at a time."""
_SAFE = 1e-6
"""Least 1 - gamma at which Cholesky is used: it bounds the condition by in / (1 - gamma)."""


def decay_off_diagonal(gram: torch.Tensor, gamma: float) -> torch.Tensor:
    """Returns `gamma * G + (1 - gamma) * diag(G)`; gamma = 1 is the full Gram, 0 its diagonal."""
    return gamma * gram + (1.0 - gamma) * torch.diag(gram.diagonal())


def regmean(
    deltas: torch.Tensor,
    grams: Iterable[torch.Tensor],
    weights: torch.Tensor,
    gamma: float,
    rounded: torch.dtype | None = None,
) -> torch.Tensor:
    """Solves for the merged update `[out, in]` of one linear layer, in float64 (residual form).

    Args:
        deltas: Updates W_k - W_global of the layer, `[N, out, in]`.
        grams: X_k^T X_k of each client's inputs, `[in, in]`, or its diagonal `[in]`, which stands for gamma = 0.
        weights: p_k, `[N]`, sum 1.
        gamma: Off-diagonal factor in [0, 1].
        rounded: Type to which the Grams were rounded before they became what they are; by default their own.
    """
    step = max(1, _NUMBERS // deltas[:, 0].numel())
    parts = (part.to(torch.float64) for part in torch.split(deltas, step, dim=1))
    mean = torch.cat([torch.einsum("n,noi->oi", weights.to(torch.float64), part) for part in parts])
    weighted, total, noise = _normal_equations((row.to(torch.float64) - mean for row in deltas), grams, gamma, rounded)
    return (mean + _divide(weighted, total, gamma, noise)).to(deltas.dtype)


def regmean_plain(
    local: torch.Tensor,
    grams: Iterable[torch.Tensor],
    gamma: float,
    start: torch.Tensor | float = 0.0,
    rounded: torch.dtype | None = None,
) -> torch.Tensor:
    """Solves W = (sum_k W_k G_k) (sum_k G_k)^+, in float64: the form of Jin et al. 2023.

    Takes the weights W_k `[N, out, in]`, or how far they are from `start`, and returns W `[out, in]`. It zeroes the
    weights in the null directions of the sum, so prefer `regmean`: one client with W = [2, 10] and G = diag(1, 0) gets
    [2, 0].
    """
    weighted, total, noise = _normal_equations(
        ((start + row).to(torch.float64) for row in local), grams, gamma, rounded
    )
    return _divide(weighted, total, gamma, noise).to(local.dtype)


def _normal_equations(
    rows: Iterable[torch.Tensor], grams: Iterable[torch.Tensor], gamma: float, rounded: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Returns `sum_k R_k G_k`, `sum_k G_k` and the relative noise of the latter's eigenvalues."""
    weighted, total, noise = torch.zeros(()), torch.zeros(()), 0.0
    for row, gram in zip(rows, grams, strict=True):
        wide = gram.to(torch.float64)
        if wide.dim() == 1:
            weighted = weighted + row * wide
        else:
            wide = decay_off_diagonal(wide, gamma)
            weighted = weighted + row @ wide
        total = total + wide
        # Rounding the entries of an n x n matrix moves its eigenvalues by about sqrt(n) units.
        noise = max(noise, torch.finfo(rounded or gram.dtype).eps * math.sqrt(len(wide)))
    return weighted, total, noise


def _divide(weighted: torch.Tensor, total: torch.Tensor, gamma: float, noise: float) -> torch.Tensor:
    """Returns `weighted @ total^+` for a positive semi-definite `total` `[in, in]`, or its diagonal `[in]`.

    An input whose diagonal is below the noise is dead: its update would be rounding, divided by almost nothing.
    """
    diagonal = total if total.dim() == 1 else total.diagonal()
    live = diagonal > noise * diagonal.max()
    safe = torch.where(live, diagonal, 1.0)
    if total.dim() == 1 or gamma == 0.0:
        return torch.where(live, weighted / safe, 0.0)
    if 1.0 - gamma >= _SAFE:
        # Scaled to a unit diagonal, total = gamma R + (1 - gamma) I with R >= 0: every eigenvalue is >= 1 - gamma.
        scale = torch.where(live, safe.rsqrt(), 0.0)
        scaled = scale[:, None] * total * scale + torch.diag((~live).to(total))
        factor, info = torch.linalg.cholesky_ex(scaled)
        if int(info) == 0:
            return torch.cholesky_solve((weighted * scale).T, factor).T * scale
    inverse: torch.Tensor = torch.linalg.pinv(total, hermitian=True, rtol=noise)
    return weighted @ inverse
