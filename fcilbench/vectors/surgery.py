"""Projection surgery on client vectors in closed form (spatial SUM: Kim and Do 2026, section 4.2, equations 5 and 7).

With G = T T^T, every refined vector is a combination of the client vectors, `tau_hat = A T`, so their sum is
`sum_j c_j tau_j` and their Gram is `A G A^T`: the refined vectors never need to exist.
"""

from __future__ import annotations

from typing import Literal

import torch

from fcilbench.vectors.chunks import Rows, pieces
from fcilbench.vectors.sums import add_rows

Target = Literal["both", "positive", "negative", "none"]


def gram(rows: torch.Tensor | Rows) -> torch.Tensor:
    """Returns the Gram matrix `rows rows^T`, float64 `[N, N]`, in one pass accumulated in float64."""
    like = rows if isinstance(rows, torch.Tensor) else rows.like
    count = rows.shape[0]
    total = like.new_zeros(count, count, dtype=torch.float64)
    wide = like.new_empty(0, dtype=torch.float64)
    for _, piece in pieces(rows):
        wide = wide if wide.shape == piece.shape else torch.empty_like(piece, dtype=torch.float64)
        wide.copy_(piece)
        total.addmm_(wide, wide.T)
    return total


def surgery_matrix(gram_: torch.Tensor, target: Target = "both", limit: int | None = None) -> torch.Tensor:
    """Returns A with `tau_hat_i = sum_j A_ij tau_j`.

    `tau_hat_i = tau_i - sum_{j != i, (i, j) in S} (G_ij / G_jj) tau_j`; S is every pair (`both`), those with G_ij > 0
    (`positive`) or < 0 (`negative`), or no pair (`none`). A zero tau_j projects nothing.

    Args:
        gram_: `[N, N]`.
        target: Which pairs are projected.
        limit: For each vector at most so many others, those with the largest |cosine|; ties by index.
    """
    norms = gram_.diagonal()
    ratio = torch.where(norms > 0, gram_ / norms.clamp(min=torch.finfo(gram_.dtype).tiny), 0.0)
    chosen = {
        "both": torch.ones_like(gram_, dtype=torch.bool),
        "positive": gram_ > 0,
        "negative": gram_ < 0,
        "none": torch.zeros_like(gram_, dtype=torch.bool),
    }[target]
    identity = torch.eye(len(gram_), dtype=gram_.dtype, device=gram_.device)
    chosen &= identity == 0
    if limit is not None:
        closeness = torch.where(chosen, cosines(gram_).abs(), -1.0)
        order = closeness.argsort(dim=1, descending=True, stable=True)
        chosen &= torch.zeros_like(chosen).scatter(1, order[:, :limit], torch.ones_like(chosen))
    return identity - ratio * chosen


def cosines(gram_: torch.Tensor) -> torch.Tensor:
    """Returns all pairwise cosines of vectors with Gram matrix `gram_`, `[N, N]`; 0 beside a zero vector."""
    norms = gram_.diagonal().clamp(min=0).sqrt()
    scale = norms[:, None] * norms[None, :]
    return torch.where(scale > 0, gram_ / scale.clamp(min=torch.finfo(gram_.dtype).tiny), 0.0)


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
    return float(cosines(gram_).triu(1).sum() / (count * (count - 1) / 2))


def merge(weights: torch.Tensor, rows: torch.Tensor | Rows) -> tuple[torch.Tensor, float]:
    """Returns `sum_j weights_j tau_j`, and how many signs of the plain sum it turns, in one pass.

    Args:
        weights: `[N]`, the coefficients times lambda_S.
        rows: `[N, D]`.

    Returns:
        The merge `[D]`, for each coordinate added in row order; and the sign-flip ratio: the share of the D
        coordinates where it and `sum_j tau_j` are both non-zero and differ in sign.
    """
    like = rows if isinstance(rows, torch.Tensor) else rows.like
    total = like.new_zeros(rows.shape[1])
    factors = weights.tolist()
    flips = torch.zeros((), dtype=torch.int64, device=like.device)
    for span, piece in pieces(rows):
        out = total[span]
        add_rows(out, factors, piece)
        flips += (out.sign() * piece.sum(dim=0).sign() < 0).sum()
    return total, int(flips) / max(rows.shape[1], 1)
