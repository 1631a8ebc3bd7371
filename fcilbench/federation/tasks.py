"""What the seeds fix: random streams, the stream of tasks, and how samples are spread over clients.

A random stream is keyed by where it is used, never by what was drawn before. The aggregator is not in the key, so all
methods share class order, partition, client sampling and batch order; and another order of clients, another device or a
resume changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fcilbench.api import Partition, Task
from fcilbench.api.schedule import Indices
from fcilbench.errors import PartitionError

Shares = npt.NDArray[np.float64]


def stream(seed: int, *coordinates: str | int) -> np.random.Generator:
    """Returns the generator at `coordinates`, e.g. `stream(seed, "batches", task, round, client)`."""
    return np.random.Generator(np.random.Philox(_number(seed, coordinates)))


def seed_torch(seed: int, *coordinates: str | int) -> None:
    """Seeds torch's global generators (initialisation, dropout) for the coordinates."""
    number = _number(seed, coordinates) & (2**63 - 1)
    if torch.cuda.is_available():
        torch.manual_seed(number)
    else:  # the other one takes 1.3 ms, in which it notes the stack for each kind of device that is not here
        torch.default_generator.manual_seed(number)


def _number(seed: int, coordinates: tuple[str | int, ...]) -> int:
    text = "/".join(str(part) for part in (seed, *coordinates))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


@dataclass(frozen=True)
class TaskStream:
    """Classes in order of arrival, cut into tasks; internal label i is the i-th class to arrive.

    Attributes:
        order: Original label of each internal label, a permutation of `0..C-1`.
        sizes: Classes of each task; they may be uneven, and sum to C.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def draw(cls, classes: int, sizes: Sequence[int], seed: int) -> TaskStream:
        """Draws the order of C classes from the order seed."""
        order = stream(seed, "class-order").permutation(classes)
        return cls(tuple(int(label) for label in order), tuple(sizes))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, with offsets from cumulative sizes."""
        offsets = [0, *np.cumsum(self.sizes).tolist()]
        return tuple(Task(index, offsets[index], size) for index, size in enumerate(self.sizes))

    def internal(self, labels: Indices) -> Indices:
        """Maps original labels to internal ones."""
        inverse = np.empty(len(self.order), dtype=np.int64)
        inverse[list(self.order)] = np.arange(len(self.order))
        return inverse[labels]

    def names(self, class_names: Sequence[str]) -> list[list[str]]:
        """Returns the class names of each task, in internal order."""
        return [[class_names[self.order[i]] for i in range(t.offset, t.seen)] for t in self.tasks]


def validation_split(
    labels: Indices, share: float, random: np.random.Generator, names: Sequence[str] = ()
) -> tuple[Indices, Indices]:
    """Holds out a share of each class, at least one sample of it; an error calls the class by its name.

    Returns:
        The sorted positions in `labels` of the samples that stay, and of those that are held out.

    Raises:
        PartitionError: If a class has a single sample.
    """
    found, counts = np.unique(labels, return_counts=True)
    if single := found[counts < 2].tolist():
        name = repr(names[single[0]]) if names else single[0]
        raise PartitionError(
            f"validation {share:g}: class {name} has one training sample, so none can be held out",
            hint="keep more samples of each class, or set protocol.validation: 0",
        )
    return hold_out(labels, share, random)


def hold_out(labels: Indices, share: float, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Holds out a share of each class: at least one sample, and never the only one.

    Returns:
        The sorted positions in `labels` of the samples that stay, and of those that are held out.
    """
    held = [np.zeros(0, dtype=np.int64)]
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        held.append(members[: min(len(members) - 1, max(1, round(share * len(members))))])
    validation = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), validation), validation


def partition(labels: Indices, clients: int, spec: Partition, random: np.random.Generator) -> tuple[Indices, ...]:
    """Spreads one task's samples with labels `[n]` over the clients.

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
    if spec.value is None:  # iid: sizes differ by at most one
        parts = np.array_split(random.permutation(len(labels)), clients)
    elif spec.kind == "quantity":  # sizes from Dir(value, ..., value)
        parts = _cut(random.permutation(len(labels)), _proportions(clients, spec.value, random))
    else:
        parts = _dirichlet(labels, clients, spec.value, random)
    return tuple(np.sort(part) for part in _top_up(parts, spec.min_samples, random))


def _dirichlet(labels: Indices, clients: int, beta: float, random: np.random.Generator) -> list[Indices]:
    """Label skew: cuts each class among the clients by proportions from Dir(beta, ..., beta) (Hsu et al. 2019).

    Smaller beta means more skew. A class with fewer samples than clients is dealt to the clients in a random order:
    where shares are nearly equal, rounding would otherwise give its samples to the same ids in every class.
    """
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        pieces = _cut(members, _proportions(clients, beta, random))
        order = random.permutation(clients) if len(members) < clients else range(clients)
        for client, piece in zip(order, pieces, strict=True):
            parts[client].append(piece)
    return [np.concatenate(part) if part else np.zeros(0, dtype=np.int64) for part in parts]


def _top_up(parts: Sequence[Indices], minimum: int, random: np.random.Generator) -> list[Indices]:
    """Moves random samples from the largest client to clients below the minimum until none is.

    Drawing the whole partition again, as comparable projects do, almost never ends at small beta.
    """
    pools = [list(part) for part in parts]
    for pool in pools:
        while len(pool) < minimum:
            largest = max(pools, key=len)
            pool.append(largest.pop(int(random.integers(len(largest)))))
    return [np.array(pool, dtype=np.int64) for pool in pools]


def _proportions(clients: int, beta: float, random: np.random.Generator) -> Shares:
    """Draws proportions `[N]` from Dir(beta, ..., beta); one client gets all if the draw underflows (small beta)."""
    drawn = random.dirichlet(np.full(clients, beta))
    if not np.isclose(drawn.sum(), 1.0):
        if beta > 1:
            return np.full(clients, 1 / clients)
        drawn = np.zeros(clients)
        drawn[random.integers(clients)] = 1.0
    return drawn


def _cut(members: Indices, shares: Shares) -> list[Indices]:
    """Cuts `members` at the rounded cumulative shares."""
    bounds = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
    return np.split(members, np.clip(bounds, 0, len(members)))
