"""Quantity skew: clients hold different numbers of samples, each an unbiased draw of the task."""

from __future__ import annotations

import numpy as np

from fcilbench.api.schedule import Indices
from fcilbench.federation.partition.dirichlet import cut, proportions


def quantity(labels: Indices, clients: int, alpha: float, random: np.random.Generator) -> list[Indices]:
    """Cuts the shuffled samples by sizes from Dir(alpha, ..., alpha).

    Args:
        labels: `[n]`; only its length matters.
        clients: Number of clients N.
        alpha: Concentration, > 0; smaller means more unequal sizes.
        random: Source of randomness.
    """
    return cut(random.permutation(len(labels)), proportions(clients, alpha, random))
