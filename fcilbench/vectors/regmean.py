"""RegMean (Jin et al. 2022): merge a linear layer by least squares on the clients' own inputs.

W = W_bar + (sum_k (W_k - W_bar) G_k) (sum_k G_k)^+ with W_bar = sum_k p_k W_k (residual form, specs/methods-a.md 4.2).
It equals the closed form where the sum is invertible, keeps FedAvg in its null directions, and leaves rows that no
client moved exactly where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def decay_off_diagonal(gram: torch.Tensor, gamma: float) -> torch.Tensor:
    """Returns `gamma * G + (1 - gamma) * diag(G)`; gamma = 1 is the full Gram, 0 its diagonal."""
    return gamma * gram + (1.0 - gamma) * torch.diag(gram.diagonal())


def regmean(deltas: torch.Tensor, grams: Sequence[torch.Tensor], weights: torch.Tensor, gamma: float) -> torch.Tensor:
    """Solves for the merged update of one linear layer, in float64.

    Args:
        deltas: Updates W_k - W_global of the layer, `[N, out, in]`.
        grams: Gram matrix X_k^T X_k of the layer's inputs on each client, `[in, in]`.
        weights: p_k, `[N]`, sum 1.
        gamma: Off-diagonal factor in [0, 1].

    Returns:
        The merged update `[out, in]`, of the deltas' dtype.
    """
    wide = deltas.to(torch.float64)
    mean = torch.einsum("n,noi->oi", weights.to(torch.float64), wide)
    total = torch.zeros_like(grams[0], dtype=torch.float64)
    weighted = torch.zeros_like(mean)
    for delta, gram in zip(wide, grams, strict=True):
        decayed = decay_off_diagonal(gram.to(torch.float64), gamma)
        total += decayed
        weighted += (delta - mean) @ decayed
    inverse: torch.Tensor = torch.linalg.pinv(total, hermitian=True)
    return (mean + weighted @ inverse).to(deltas.dtype)
