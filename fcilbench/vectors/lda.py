"""Linear discriminant analysis from sums alone: one covariance for all classes, their means, and the head they give."""

from __future__ import annotations

import torch

from fcilbench.vectors.ridge import spectrum

_ROUNDING = 1e-12
"""Share of the squared features below which what is left around the class means is rounding."""


def within_covariance(gram: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns Sigma = (S - sum_c s_c s_c^T / n_c) / n `[F, F]`, float64: the mean scatter around the class means.

    Args:
        gram: S = sum f f^T over all samples, `[F, F]`.
        sums: s_c, the sum of the features of each class, `[C, F]`.
        counts: n_c, `[C]`; classes without samples count nothing, and without any sample Sigma is 0.
    """
    wide, count, total = sums.to(torch.float64), counts.to(torch.float64), gram.to(torch.float64)
    scatter = total - wide.T @ (wide / count.clamp(min=1)[:, None])
    covariance: torch.Tensor = scatter / count.sum().clamp(min=1)
    return torch.where(scatter.trace() > _ROUNDING * total.trace(), covariance, 0.0)


def oas_shrinkage(covariance: torch.Tensor, samples: float) -> float:
    """Returns the shrinkage rho of a covariance `[F, F]` towards (tr / F) I that suits n samples of a Gaussian.

    Chen, Wiesel, Eldar, Hero 2010, "Shrinkage Algorithms for MMSE Covariance Estimation" (OAS): with a the mean of the
    squared entries and m = tr / F, rho = min(1, (a + m^2) / ((n + 1) (a - m^2 / F))).
    """
    size = len(covariance)
    power, level = float(covariance.square().mean()), float(covariance.diagonal().mean())
    spread = (samples + 1) * (power - level**2 / size)
    return min(1.0, (power + level**2) / spread) if spread > 0 else 1.0


def lda_head(
    covariance: torch.Tensor, means: torch.Tensor, shrinkage: float, level: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows w_c = Lam mu_c `[C, F]` and biases b_c = -mu_c^T Lam mu_c / 2 `[C]` of the discriminant, float64.

    Lam = ((1 - e) Sigma + e m I)^-1 with the `covariance` Sigma `[F, F]`, the `shrinkage` e in (0, 1], its `level` m,
    and the class `means` mu_c `[C, F]`. With e = 1 it ranks classes by the distance to their means. Where there is
    neither scatter nor a level (all samples of each class are equal), the variance is 1.
    """
    values, vectors = spectrum(covariance)
    shrunk = (1.0 - shrinkage) * values + shrinkage * level
    turned = means.to(torch.float64) @ vectors
    weight = (turned / torch.where(shrunk > 0, shrunk, 1.0)) @ vectors.T
    return weight, -0.5 * (weight * means).sum(dim=1)
