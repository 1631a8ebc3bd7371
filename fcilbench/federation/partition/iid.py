"""No skew: samples are dealt to the clients at random, in equal numbers."""

from __future__ import annotations

import numpy as np

from fcilbench.api.schedule import Indices


def iid(labels: Indices, clients: int, random: np.random.Generator) -> list[Indices]:
    """Shuffles the samples and deals them; sizes differ by at most one.

    Args:
        labels: `[n]`; only its length matters.
        clients: Number of clients N.
        random: Source of randomness.
    """
    return list(np.array_split(random.permutation(len(labels)), clients))
