"""Label skew: each class is spread over the clients by proportions from a Dirichlet distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fcilbench.api.schedule import Indices


def dirichlet(labels: Indices, clients: int, beta: float, random: np.random.Generator) -> list[Indices]:
    """Cuts each class among the clients by proportions from Dir(beta, ..., beta) (Hsu et al. 2019).

    Smaller beta means more skew; a large beta approaches an equal share of every class for every client.

    Args:
        labels: `[n]`.
        clients: Number of clients N.
        beta: Concentration, > 0.
        random: Source of randomness.

    Returns:
        Positions of each client; some may be empty.
    """
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        for part, piece in zip(parts, cut(members, proportions(clients, beta, random)), strict=True):
            part.append(piece)
    return [np.concatenate(part) if part else np.zeros(0, dtype=np.int64) for part in parts]


def proportions(clients: int, beta: float, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draws proportions `[N]` that sum to 1; where beta is so small that the draw underflows, one client gets all."""
    drawn = random.dirichlet(np.full(clients, beta))
    if not np.isfinite(drawn).all() or drawn.sum() == 0.0:
        drawn = np.zeros(clients)
        drawn[random.integers(clients)] = 1.0
    return drawn


def cut(members: Indices, shares: npt.NDArray[np.float64]) -> list[Indices]:
    """Cuts `members` at the rounded cumulative shares; every member lands in exactly one piece."""
    bounds = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
    return np.split(members, np.clip(bounds, 0, len(members)))
