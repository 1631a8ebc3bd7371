"""Virtual features: draws from the Gaussians of classes, one Gaussian or a mixture for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fcilbench.vectors.gaussian import Gaussians, covariances, roots, sample


@dataclass(frozen=True)
class VirtualFeatures:
    """Components of all classes that have statistics.

    Attributes:
        classes: Labels of these classes, ascending int64 `[a]`; a class without samples is not among them.
        slot: Position in `classes` of each component's class, int64 `[m]`.
        count: Samples behind each component, float64 `[m]`, on the CPU; components of a class are drawn by it.
        mean: `[m, F]`.
        root: Factors of the covariances, `[m, F]` or `[m, F, F]`.
    """

    classes: torch.Tensor
    slot: torch.Tensor
    count: torch.Tensor
    mean: torch.Tensor
    root: torch.Tensor

    @classmethod
    def of(
        cls, groups: Sequence[tuple[int, Gaussians]], shrink: float, rho_few: float, rho_many: float
    ) -> VirtualFeatures | None:
        """Collects the components with samples of all groups; `None` if there are none.

        Args:
            groups: Label of the first class, and statistics of consecutive classes. Several groups may cover a class.
            shrink: As for `covariances`, likewise the next two.
            rho_few: See there.
            rho_many: See there.
        """
        present = [(offset, found, torch.nonzero(found.count > 0)[:, 0]) for offset, found in groups]
        present = [(offset, found, index) for offset, found, index in present if len(index)]
        if not present:
            return None
        owner = torch.cat([index + offset for offset, _, index in present])
        chosen = [found[index] for _, found, index in present]
        flat = Gaussians(*(torch.cat([getattr(g, name) for g in chosen]) for name in ("count", "mean", "scatter")))
        classes, slot = torch.unique(owner, return_inverse=True)
        root = roots(covariances(flat, shrink, rho_few, rho_many))
        return cls(classes, slot, flat.count.cpu(), flat.mean, root)

    def draw(self, samples: int, exact: bool, random: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws features of all classes.

        Args:
            samples: Features a class.
            exact: Exactly so many, or a multinomial number with this mean.
            random: Numbers are drawn on the CPU, so that every device sees the same.

        Returns:
            Features float32 `[n, F]` and positions in `classes` int64 `[n]`.
        """
        amount = len(self.classes)
        wanted = np.full(amount, samples)
        if not exact:
            wanted = random.multinomial(samples * amount, np.full(amount, 1.0 / amount))
        slot, count = self.slot.cpu().numpy(), self.count.numpy()
        times = np.zeros(len(slot), dtype=np.int64)
        for position in range(amount):
            own = slot == position
            times[own] = random.multinomial(wanted[position], count[own] / count[own].sum())
        chosen = torch.from_numpy(np.repeat(np.arange(len(slot)), times)).to(self.mean.device)
        noise = torch.from_numpy(random.standard_normal((len(chosen), self.mean.shape[1]))).to(self.mean)
        return sample(self.mean, self.root, chosen, noise).float(), self.slot[chosen]
