"""Partitions: which client holds which samples of a task. Each ends in bounded time and uses every sample once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fcilbench.api.schedule import Indices
from fcilbench.errors import PartitionError
from fcilbench.spec.protocol import Partition

Shares = npt.NDArray[np.float64]


def partition(labels: Indices, clients: int, spec: Partition, random: np.random.Generator) -> tuple[Indices, ...]:
    """Spreads one task's samples over the clients.

    Args:
        labels: Label of each sample of the task, `[n]`.
        clients: Number of clients N.
        spec: Kind, concentration and least number of samples of a client.
        random: The partition stream of the task.

    Returns:
        For each client the sorted positions in `labels` of its samples. Every position occurs exactly once.

    Raises:
        PartitionError: If there are too few samples for the requested minimum.
    """
    if len(labels) < clients * spec.min_samples:
        raise PartitionError(
            f"partition {spec.label}: {len(labels)} samples cannot give {clients} clients {spec.min_samples} each",
            hint="lower partition.min_samples (0 allows empty clients) or protocol.clients",
        )
    if spec.kind == "dirichlet":
        assert spec.value is not None
        parts = dirichlet(labels, clients, spec.value, random)
    elif spec.kind == "quantity":
        assert spec.value is not None
        parts = quantity(labels, clients, spec.value, random)
    else:
        parts = iid(labels, clients, random)
    return tuple(np.sort(part) for part in top_up(parts, spec.min_samples, random))


def dirichlet(labels: Indices, clients: int, beta: float, random: np.random.Generator) -> list[Indices]:
    """Label skew: cuts each class among the clients by proportions from Dir(beta, ..., beta) (Hsu et al. 2019).

    Smaller beta means more skew; a large beta approaches an equal share of every class for every client. A class with
    fewer samples than clients is dealt to the clients in a random order: where shares are nearly equal, rounding would
    otherwise give its samples to the same ids in every class.
    """
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        pieces = _cut(members, _proportions(clients, beta, random))
        order = random.permutation(clients) if len(members) < clients else range(clients)
        for client, piece in zip(order, pieces, strict=True):
            parts[client].append(piece)
    return [np.concatenate(part) if part else np.zeros(0, dtype=np.int64) for part in parts]


def quantity(labels: Indices, clients: int, alpha: float, random: np.random.Generator) -> list[Indices]:
    """Quantity skew: cuts the shuffled samples by sizes from Dir(alpha, ..., alpha); smaller is more unequal."""
    return _cut(random.permutation(len(labels)), _proportions(clients, alpha, random))


def iid(labels: Indices, clients: int, random: np.random.Generator) -> list[Indices]:
    """No skew: shuffles the samples and deals them; sizes differ by at most one."""
    return list(np.array_split(random.permutation(len(labels)), clients))


def top_up(parts: Sequence[Indices], minimum: int, random: np.random.Generator) -> list[Indices]:
    """Moves random samples from the largest client to clients below the minimum until none is.

    Drawing the whole partition again, as comparable projects do, accepts a draw with probability near zero at small
    beta. Here each move shortens the shortfall by one, so there are at most `clients * minimum` moves.
    """
    pools = [list(part) for part in parts]
    for pool in pools:
        while len(pool) < minimum:
            largest = max(pools, key=len)
            pool.append(largest.pop(int(random.integers(len(largest)))))
    return [np.array(pool, dtype=np.int64) for pool in pools]


def _proportions(clients: int, beta: float, random: np.random.Generator) -> Shares:
    """Draws proportions `[N]` that sum to 1; where beta is so small that the draw underflows, one client gets all."""
    drawn = random.dirichlet(np.full(clients, beta))
    if not np.isfinite(drawn).all() or drawn.sum() == 0.0:
        drawn = np.zeros(clients)
        drawn[random.integers(clients)] = 1.0
    return drawn


def _cut(members: Indices, shares: Shares) -> list[Indices]:
    """Cuts `members` at the rounded cumulative shares; every member is in exactly one piece."""
    bounds = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
    return np.split(members, np.clip(bounds, 0, len(members)))
