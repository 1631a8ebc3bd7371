"""Ridge regression onto one-hot targets from sums alone: the Gram matrix of the features and the class sums."""

from __future__ import annotations

import torch

GRID = tuple(10.0 ** (half / 2) for half in range(-16, 5))
"""Strengths that are tried, in units of the Gram's mean diagonal: half decades from 1e-8 to 100."""


def solve_ridge(gram: torch.Tensor, sums: torch.Tensor, strength: float) -> torch.Tensor:
    """Returns the `[C, F]` W of least ||X W^T - Y||^2 + lambda ||W||^2 with lambda = strength * tr(G) / F, in float64.

    Args:
        gram: G = X^T X, `[F, F]`.
        sums: Y^T X, for one-hot Y the sum of each class's features, `[C, F]`.
        strength: Positive; relative, so that scaling all features changes no prediction.
    """
    values, vectors = spectrum(gram)
    level = strength * values.mean()
    # A Gram of zeros has sums of zeros: any positive level then gives weights of zero.
    level = torch.where(level > 0, level, torch.ones_like(level))
    return (sums.to(torch.float64) @ vectors) / (values + level) @ vectors.T


def gcv_strength(gram: torch.Tensor, sums: torch.Tensor, samples: float) -> float:
    """Returns the strength of `GRID` of least generalised cross-validation (Golub, Heath, Wahba 1979).

    GCV(lambda) = n RSS / (n - df)^2 with df = tr(G (G + lambda I)^-1). For one-hot targets RSS = n - 2 <W, S> +
    <W, W G> needs the Gram and the class sums only, so no sample is held out and no test sample is looked at. If the
    `samples` n decide nothing, the largest strength is returned.
    """
    values, vectors = spectrum(gram)
    energy = (sums.to(torch.float64) @ vectors).square().sum(dim=0)
    level = float(values.mean())
    best, chosen = float("inf"), float(GRID[-1])
    for strength in GRID:
        inverse = 1.0 / (values + strength * level) if level > 0 else torch.zeros_like(values)
        rss = samples - 2.0 * float((energy * inverse).sum()) + float((energy * values * inverse.square()).sum())
        left = samples - float((values * inverse).sum())
        # Almost interpolating: residual and freedom both vanish, and their quotient is rounding.
        score = samples * max(rss, 0.0) / left**2 if left > 1e-6 * samples else float("inf")
        if score < best:
            best, chosen = score, strength
    return chosen


def spectrum(gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns eigenvalues `[F]` and eigenvectors `[F, F]` of a Gram or covariance matrix, in float64.

    Rounding, or a client that uploads noise, may leave negative eigenvalues, which no such matrix has: they become 0.
    """
    values, vectors = torch.linalg.eigh(gram.to(torch.float64))
    return values.clamp(min=0.0), vectors
