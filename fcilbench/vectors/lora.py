"""Merges low-rank products instead of their factors: the mean of B_k A_k is not the mean of B_k times the mean of A_k.

FedIT (Zhang et al. 2024) averages A and B apart, which is FedAvg on the state vector. Here the products are merged and
factorised again at the same rank, as by FlexLoRA (Bai et al. 2024, "Federated Fine-tuning of Large Language Models
under Heterogeneous Tasks and Client Resources"), with the same bytes in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_NUMBERS = 1 << 24
"""Numbers of the clients' products that exist at a time."""
_SAME = 1e-6
"""Relative residual below which the mean factors are the merged product: rounding of float32 factors."""


def merge_products(
    a: torch.Tensor, b: torch.Tensor, means: Sequence[torch.Tensor], merge: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Returns factors A `[r, in]` and B `[out, r]` of the merged products, and the share of the squared norm lost.

    A has orthonormal rows and B the singular values, so that a direction that no client has used yet keeps a non-zero A
    and can still be trained. If the mean factors give the merged product, they are kept: one client, clients that
    agree, B = 0. The columns of all B_k span the merged product, so the dense one `[out, in]` is never formed.

    Args:
        a: A_k, `[N, r, in]`.
        b: B_k, `[N, out, r]`.
        means: Mean factors.
        merge: Maps the clients' matrices `[N, m, in]` to the merged one `[m, in]`, each row by itself.
    """
    a, b = a.to(torch.float64), b.to(torch.float64)
    mean_a, mean_b = (mean.to(torch.float64) for mean in means)
    basis = torch.linalg.qr(b.transpose(0, 1).flatten(1))[0]
    step = max(1, _NUMBERS // a[:, 0].numel())
    merged = torch.cat([merge(part.T @ b @ a) for part in torch.split(basis, step, dim=1)])
    if float((merged - basis.T @ mean_b @ mean_a).norm()) <= _SAME * float(merged.norm()):
        return mean_a, mean_b, 0.0
    left, values, right = torch.linalg.svd(merged, full_matrices=False)
    # The signs of singular vectors are arbitrary: the largest entry of each row of A is made positive.
    sign = right.gather(1, right.abs().argmax(dim=1, keepdim=True)).sign()
    rank = min(a.shape[1], len(values))
    new_a, new_b = torch.zeros_like(mean_a), torch.zeros_like(mean_b)
    new_a[:rank] = (right * sign)[:rank]
    new_b[:, :rank] = basis @ (left * values * sign.T)[:, :rank]
    energy = values.square()
    return new_a, new_b, float(energy[rank:].sum() / energy.sum())
