"""The inference-ready module: sparsify, elect, mask and scale (Kim and Do 2026, section 4.4).

Each tau_hat_k keeps its largest entries, and tau_uni is elected from these (`elect`). Task k deploys
theta_pre + s_k m_k * tau_uni with m_k = [tau_k * tau_uni > 0] and s_k = ||tau_k||_1 / (||m_k * tau_uni||_1 + eps). The
printed election names both a majority sign and zero wherever tasks disagree: they are our rules `count` and `strict`.
EMR-Merging (Huang et al. 2024), from which it comes, keeps all entries and elects by the sign of their sum, `mass`.

All of it is per coordinate but for the cut of the sparsification and the norms of the scales, so tau_uni, the scales
and each task's deployed vector take one pass over the basis each, and no sparsified vector is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from fcilbench.vectors.basis import Basis, accumulated
from fcilbench.vectors.chunks import columns, spans
from fcilbench.vectors.storage import size_of, stack
from fcilbench.vectors.topk import Cut

Rule = Literal["count", "mass", "strict", "off"]
RULES: tuple[Rule, ...] = get_args(Rule)
MaskFrom = Literal["accumulated", "refined"]
_EPS = 1e-12


def elect(vectors: torch.Tensor, rule: Rule = "count") -> torch.Tensor:
    """Returns per coordinate the elected sign with the largest magnitude that agrees with it.

    Args:
        vectors: The sparsified basis vectors `[T, c]`.
        rule: `count`: the sign that more non-zero entries have, a tie gives 0. `mass`: the sign of their sum
            (EMR-Merging). `strict`: the sign that all non-zero entries share, any disagreement gives 0. `off`: no
            election, the plain sum.
    """
    if rule == "off":
        return vectors.sum(dim=0, dtype=torch.float64).to(vectors.dtype)
    largest, smallest = vectors.amax(dim=0).clamp_(min=0), vectors.amin(dim=0).clamp_(max=0)
    if rule == "mass":
        sign = vectors.sum(dim=0, dtype=torch.float64).sign()
    elif rule == "strict":
        sign = largest.sign() + smallest.sign()
    else:
        sign = vectors.sign().sum(dim=0)
    return torch.where(sign > 0, largest, torch.where(sign < 0, smallest, 0.0))


def unify(basis: Basis, cuts: Sequence[Cut] | None, rule: Rule, device: torch.device) -> torch.Tensor:
    """Returns tau_uni `[D]`: the basis, each vector sparsified by its cut (`None`: kept whole), then elected."""
    unified = []
    for span in _spans(basis, device):
        pieces = stack(basis, span)
        for piece, cut in zip(pieces, cuts or (), strict=cuts is not None):
            piece.mul_(cut.keeps(piece, span.start))
        unified.append(elect(pieces, rule))
    return torch.cat(unified)


def mask(task: torch.Tensor, unified: torch.Tensor) -> torch.Tensor:
    """Returns m = [task * unified > 0], bool `[c]`."""
    # Signs instead of the product, which underflows where both entries are tiny.
    return (task.sign() * unified.sign()) > 0


@dataclass(frozen=True)
class Modulators:
    """Masks and scales of the tasks 1..T under one tau_uni.

    Attributes:
        basis: tau_hat_1 .. tau_hat_T as they are kept.
        coefficients: What `project_out` kept of each.
        unified: tau_uni, `[D]`.
        source: Which vector of a task its mask and scale come from: tau_k (`accumulated`) or tau_hat_k (`refined`);
            `None`: no masks and scale 1, the same vector for every task.
    """

    basis: Basis
    coefficients: Sequence[torch.Tensor]
    unified: torch.Tensor
    source: MaskFrom | None = "accumulated"

    def masks(self, index: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """Iterates over the pieces of m_index, bool."""
        for span, unified in self._unified():
            if self.source is None:
                yield span, torch.ones_like(unified, dtype=torch.bool)
            else:
                yield span, mask(self._task(stack(self.basis[: index + 1], span), index), unified)

    def scales(self) -> torch.Tensor:
        """Returns s_k = ||tau_k||_1 / (||m_k * tau_uni||_1 + eps) of each task, float32 `[T]`; 0 for an empty mask."""
        if self.source is None:
            return torch.ones(len(self.basis), device=self.unified.device)
        size, agreed = self.norms()
        return torch.where(agreed > 0, size / (agreed + _EPS), 0.0).to(torch.float32)

    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ||tau_k||_1 and ||m_k * tau_uni||_1 of each task, float64 `[T]`, in one pass."""
        size, agreed = torch.zeros(2, len(self.basis), dtype=torch.float64, device=self.unified.device)
        for span, unified in self._unified():
            pieces = stack(self.basis, span)
            for index in range(len(self.basis)):
                task = self._task(pieces, index)
                size[index] += task.abs().sum(dtype=torch.float64)
                agreed[index] += (unified.abs() * mask(task, unified)).sum(dtype=torch.float64)
        return size, agreed

    def deployed(self, index: int, scale: float) -> torch.Tensor:
        """Returns the deployed task vector m_index * s_index * tau_uni, `[D]`."""
        parts = [restore(self.unified[span], own, scale) for span, own in self.masks(index)]
        return torch.cat(parts)

    def _unified(self) -> Iterator[tuple[slice, torch.Tensor]]:
        for span in _spans(self.basis, self.unified.device):
            yield span, self.unified[span]

    def _task(self, pieces: torch.Tensor, index: int) -> torch.Tensor:
        return pieces[index] if self.source == "refined" else accumulated(pieces, index, self.coefficients)


def restore(unified: torch.Tensor, mask_: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns `mask * scale * unified`."""
    return torch.where(mask_, unified * scale, 0.0)


def _spans(basis: Basis, device: torch.device) -> Iterator[slice]:
    return spans(size_of(basis[0]), columns(len(basis), device))
