"""Gaussian statistics of features by class: exact merging, repair of what few samples leave open, sampling.

Classes are kept as count, mean and scatter M2 = sum (f - mean)(f - mean)^T, never as a variance, so that a class of one
sample is valid. Clients are merged by n = sum_k n_k, mean = sum_k n_k mean_k / n and M2 = sum_k (M2_k + n_k d_k d_k^T)
with d_k = mean_k - mean. M2 / (n - 1) is the covariance of Luo et al. 2021, without their differences of large numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Gaussians:
    """Statistics of c classes, float64.

    Attributes:
        count: Samples n, `[c]`; a class without any has zeros everywhere.
        mean: `[c, F]`.
        scatter: M2 `[c, F, F]`, or its diagonal `[c, F]`.
    """

    count: torch.Tensor
    mean: torch.Tensor
    scatter: torch.Tensor

    @property
    def full(self) -> bool:
        """Whether whole matrices are kept."""
        return self.scatter.dim() == 3

    def __getitem__(self, classes: torch.Tensor) -> Gaussians:
        return Gaussians(self.count[classes], self.mean[classes], self.scatter[classes])

    def without_singletons(self) -> Gaussians:
        """Returns the statistics without the classes of one sample, as fed-mammoth drops them."""
        keep = self.count > 1
        scatter = self.scatter * keep.view(-1, *[1] * (self.scatter.dim() - 1))
        return Gaussians(self.count * keep, self.mean * keep[:, None], scatter)


def measure(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], classes: int, features: int, full: bool) -> Gaussians:
    """Measures the classes of labelled features; batches are merged exactly.

    Args:
        batches: Features `[n, F]` and labels in `0..classes-1` `[n]`.
        classes: Number of classes c.
        features: Number of features F.
        full: Keep whole matrices instead of their diagonals.
    """
    shape = (classes, features, features) if full else (classes, features)
    zeros = [torch.zeros(size, dtype=torch.float64) for size in ((classes,), (classes, features), shape)]
    found = Gaussians(*zeros)
    for rows, labels in batches:
        found = merge([Gaussians(*(x.to(rows.device) for x in (found.count, found.mean, found.scatter))),
                       _of_batch(rows.to(torch.float64), labels, classes, full)])  # fmt: skip
    return found


def _of_batch(rows: torch.Tensor, labels: torch.Tensor, classes: int, full: bool) -> Gaussians:
    member = torch.nn.functional.one_hot(labels, classes).to(torch.float64)
    count = member.sum(dim=0)
    mean = (member.T @ rows) / count.clamp(min=1)[:, None]
    centred = rows - mean[labels]
    if not full:
        return Gaussians(count, mean, member.T @ centred.square())
    own = [centred[labels == c] for c in range(classes)]
    return Gaussians(count, mean, torch.stack([members.T @ members for members in own]))


def merge(parts: Sequence[Gaussians]) -> Gaussians:
    """Returns the statistics of the pooled samples, exactly.

    n = sum n_k, mu = sum n_k mu_k / n, M2 = sum M2_k + sum n_k (mu_k - mu)(mu_k - mu)^T.
    """
    count = torch.stack([part.count for part in parts]).sum(dim=0)
    weighted = torch.stack([part.count[:, None] * part.mean for part in parts]).sum(dim=0)
    mean = weighted / count.clamp(min=1)[:, None]
    scatter = torch.zeros_like(parts[0].scatter)
    for part in parts:
        apart = part.mean - mean
        between = apart[:, :, None] * apart[:, None, :] if part.full else apart.square()
        scatter += part.scatter + part.count.view(-1, *[1] * (scatter.dim() - 1)) * between
    return Gaussians(count, mean, scatter)


def covariances(found: Gaussians, shrink: float, rho_few: float = 0.1, rho_many: float = 0.01) -> torch.Tensor:
    """Returns a usable covariance of every class with samples: M2 / (n - 1), repaired.

    A class of one sample gets the mean covariance of the others, or none if there are no others. Diagonals get
    `shrink` added; matrices are shrunk towards a multiple of the identity, (1 - rho) S + rho (tr S / F) I.

    Args:
        found: Classes, all with at least one sample.
        shrink: Variance added to every direction, so that none is zero.
        rho_few: rho of a class with at most F samples.
        rho_many: rho of the others.

    Returns:
        Float64, `[c, F, F]` or diagonals `[c, F]`.
    """
    several = found.count > 1
    shape = (-1, *[1] * (found.scatter.dim() - 1))
    raw = found.scatter / (found.count - 1).clamp(min=1).view(shape)
    shared = raw[several].mean(dim=0) if bool(several.any()) else torch.zeros_like(raw[0])
    own = torch.where(several.view(shape), raw, shared)
    if not found.full:
        return own + shrink
    size = own.shape[-1]
    rho = torch.where(found.count > size, rho_many, rho_few).to(own).view(shape)
    level = own.diagonal(dim1=1, dim2=2).mean(dim=1).view(shape)
    identity = torch.eye(size, dtype=own.dtype, device=own.device)
    return (1 - rho) * own + (rho * level + shrink) * identity


def roots(covariance: torch.Tensor) -> torch.Tensor:
    """Returns factors A with A A^T = covariance: standard deviations `[c, F]`, or Cholesky factors `[c, F, F]`.

    Where rounding leaves a matrix indefinite, a jitter relative to its diagonal is multiplied by 10 until it is not.

    Raises:
        ValueError: If a matrix is not a covariance at all, even up to rounding.
    """
    if covariance.dim() == 2:
        return covariance.sqrt()
    return torch.stack([_cholesky(matrix) for matrix in covariance])


def _cholesky(matrix: torch.Tensor) -> torch.Tensor:
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    jitter = 0.0
    for power in range(-13, 0):
        factor, info = torch.linalg.cholesky_ex(matrix + jitter * identity)
        if int(info) == 0:
            found: torch.Tensor = factor
            return found
        jitter = 10.0**power * float(matrix.diagonal().mean())
    raise ValueError("a class covariance has a direction of negative variance")


def sample(mean: torch.Tensor, root: torch.Tensor, classes: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Returns one draw of N(mean, A A^T) for each entry of `classes`.

    Args:
        mean: `[c, F]`.
        root: A, `[c, F]` or `[c, F, F]`.
        classes: Class of each draw, ascending, int64 `[n]`.
        noise: Standard normal `[n, F]`.
    """
    if root.dim() == 2:
        return mean[classes] + root[classes] * noise
    drawn = [noise[classes == c] @ root[c].T for c in range(len(root))]
    return mean[classes] + torch.cat(drawn)
