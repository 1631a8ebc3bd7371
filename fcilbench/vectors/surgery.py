"""Projection surgery on client vectors in closed form (the paper, spatial SUM; specs/sum.md, section 1).

With G = T T^T, every refined vector is a combination of the client vectors, `tau_hat = A T`, so their sum is
`sum_j c_j tau_j` and their Gram is `A G A^T`: the refined vectors never need to exist.
"""

from __future__ import annotations

from typing import Literal

import torch

Target = Literal["both", "positive", "negative", "none"]
_CHUNK = 1 << 22


def gram(rows: torch.Tensor) -> torch.Tensor:
    """Returns the Gram matrix `rows rows^T`, float64 `[N, N]`, accumulated in float64 over chunks of D."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for chunk in torch.split(rows, _CHUNK, dim=1):
        wide = chunk.to(torch.float64)
        total += wide @ wide.T
    return total


def surgery_matrix(gram_: torch.Tensor, target: Target = "both") -> torch.Tensor:
    """Returns A with `tau_hat_i = sum_j A_ij tau_j`.

    `tau_hat_i = tau_i - sum_{j != i, (i, j) in S} (G_ij / G_jj) tau_j`; S is every pair (`both`), those with G_ij > 0
    (`positive`) or < 0 (`negative`), or no pair (`none`). A zero tau_j projects nothing.

    Args:
        gram_: `[N, N]`.
        target: Which pairs are projected.
    """
    norms = gram_.diagonal()
    ratio = torch.where(norms > 0, gram_ / norms.clamp(min=torch.finfo(gram_.dtype).tiny), 0.0)
    chosen = {
        "both": torch.ones_like(gram_, dtype=torch.bool),
        "positive": gram_ > 0,
        "negative": gram_ < 0,
        "none": torch.zeros_like(gram_, dtype=torch.bool),
    }[target]
    off_diagonal = ~torch.eye(len(gram_), dtype=torch.bool, device=gram_.device)
    return torch.eye(len(gram_), dtype=gram_.dtype, device=gram_.device) - ratio * (chosen & off_diagonal)


def coefficients(matrix: torch.Tensor) -> torch.Tensor:
    """Returns c `[N]` with `sum_i tau_hat_i = sum_j c_j tau_j`, from the surgery matrix A.

    Example:
        >>> coefficients(surgery_matrix(torch.tensor([[9.0, 3.0], [3.0, 2.0]])))
        tensor([ 0.6667, -0.5000])
    """
    return matrix.sum(dim=0)


def mean_pairwise_cosine(gram_: torch.Tensor) -> float:
    """Returns the mean cosine over pairs i < j of vectors with Gram matrix `gram_`; 0 for fewer than two.

    Pairs with a zero vector count as 0.
    """
    count = len(gram_)
    if count < 2:
        return 0.0
    norms = gram_.diagonal().clamp(min=0).sqrt()
    scale = norms[:, None] * norms[None, :]
    cosines = torch.where(scale > 0, gram_ / scale.clamp(min=torch.finfo(gram_.dtype).tiny), 0.0)
    return float(cosines.triu(1).sum() / (count * (count - 1) / 2))
