"""Ridge regression onto one-hot targets from sums alone: the Gram matrix of the features and the class sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch

GRID = tuple(10.0 ** (half / 2) for half in range(-16, 5))
"""Strengths that are tried, in units of the Gram's mean diagonal: half decades from 1e-8 to 100."""

LEAST_LEFT = 0.3
"""Least share of the samples that a fit which is judged by GCV may leave as residual degrees of freedom."""


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
    <W, W G> needs the Gram and the class sums only, so no sample is held out and no test sample is looked at.

    With fewer samples than features a fit can interpolate. Residual and freedom then both vanish, a few samples decide
    their quotient, and GCV may have a false minimum (`benchmarks/few_samples.py`). That it fits few samples too closely
    is known (Kim and Gu 2004). So a strength counts only if df <= (1 - LEAST_LEFT) n; with n > 1.43 F all do. If none
    does, or the `samples` n decide nothing, the largest strength is returned.
    """
    values, vectors = spectrum(gram)
    energy = (sums.to(torch.float64) @ vectors).square().sum(dim=0)
    level = float(values.mean())
    best, chosen = float("inf"), float(GRID[-1])
    for strength in GRID:
        inverse = 1.0 / (values + strength * level) if level > 0 else torch.zeros_like(values)
        rss = samples - 2.0 * float((energy * inverse).sum()) + float((energy * values * inverse.square()).sum())
        left = samples - float((values * inverse).sum())
        score = samples * max(rss, 0.0) / left**2 if left > LEAST_LEFT * samples else float("inf")
        if score < best:
            best, chosen = score, strength
    return chosen


def holdout_errors(
    fitted: tuple[torch.Tensor, torch.Tensor],
    held: tuple[torch.Tensor, torch.Tensor],
    samples: float,
    levels: Sequence[float],
) -> list[float]:
    """Returns the squared error on held-out samples of the ridge regression at each level lambda > 0, from sums alone.

    With G, S of the samples that are fitted and G_v, S_v of the n_v held-out ones it is
    n_v - 2 <W, S_v> + <W, W G_v>, where W = S (G + lambda I)^-1: one eigendecomposition serves all levels.

    Args:
        fitted: G `[F, F]` and S `[C, F]`, as those of `solve_ridge`.
        held: G_v and S_v.
        samples: n_v.
        levels: Values of lambda, absolute.
    """
    values, vectors = spectrum(fitted[0])
    fit, found = fitted[1].to(torch.float64) @ vectors, held[1].to(torch.float64) @ vectors
    turned = vectors.T @ held[0].to(torch.float64) @ vectors
    weights = [fit / (values + level) for level in levels]
    return [float(samples - 2.0 * (w * found).sum() + (w * (w @ turned)).sum()) for w in weights]


def spectrum(gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns eigenvalues `[F]` and eigenvectors `[F, F]` of a Gram or covariance matrix, in float64.

    Rounding, or a client that uploads noise, may leave negative eigenvalues, which no such matrix has: they become 0.
    """
    values, vectors = torch.linalg.eigh(gram.to(torch.float64))
    return values.clamp(min=0.0), vectors
