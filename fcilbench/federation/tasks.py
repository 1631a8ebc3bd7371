"""What the seeds fix: random streams as coordinates, the stream of tasks, and how samples are spread over clients.

A random stream is a hash of where it is used, never of what was drawn before. The aggregator is never a coordinate, so
all methods share class order, partition, client sampling and batch order; and running clients in another order, on
another device or after a resume changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fcilbench.api.schedule import Indices, Task
from fcilbench.errors import PartitionError, UsageError
from fcilbench.spec.protocol import Partition

Shares = npt.NDArray[np.float64]


def stream(seed: int, *coordinates: str | int) -> np.random.Generator:
    """Returns the generator at `coordinates`, e.g. `stream(seed, "batches", task, round, client)`."""
    return np.random.Generator(np.random.Philox(_number(seed, coordinates)))


def seed_torch(seed: int, *coordinates: str | int) -> None:
    """Seeds torch's global generators (initialisation, dropout) for the coordinates."""
    torch.manual_seed(_number(seed, coordinates) & (2**63 - 1))


def _number(seed: int, coordinates: tuple[str | int, ...]) -> int:
    text = "/".join(str(part) for part in (seed, *coordinates))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


@dataclass(frozen=True)
class TaskStream:
    """Classes in order of arrival, cut into tasks.

    Internal label i is the i-th class to arrive; train and test are mapped by the same order.

    Attributes:
        order: Original label of each internal label, a permutation of `0..C-1`.
        sizes: Classes of each task; they sum to C and may be uneven.

    Raises:
        UsageError: If the order is no permutation or the sizes do not sum to C.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        classes = len(self.order)
        if sorted(self.order) != list(range(classes)):
            raise UsageError(f"class order is not a permutation of 0..{classes - 1}")
        if sum(self.sizes) != classes or min(self.sizes, default=0) < 1:
            raise UsageError(
                f"task sizes {list(self.sizes)} sum to {sum(self.sizes)}, the data set has {classes} classes",
                hint="give each task at least one class and use every class once",
            )

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


def equal_tasks(classes: int, tasks: int | Sequence[int]) -> tuple[int, ...]:
    """Returns the classes of each task: C cut into a number of equal tasks, or the sizes as they are given."""
    if not isinstance(tasks, int):
        return tuple(tasks)
    if tasks < 1 or classes % tasks:
        raise UsageError(
            f"{classes} classes cannot be cut into {tasks} equal tasks",
            hint="list the classes of each task, e.g. tasks: [19, 19, ..., 25]",
        )
    return (classes // tasks,) * tasks


def validation_split(labels: Indices, share: float, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Holds out a share of each class, at least one sample of it.

    Returns:
        The sorted positions in `labels` of the samples that stay, and of those that are held out.

    Raises:
        PartitionError: If a class has a single sample, so that nothing of it would stay.
    """
    held = []
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        if len(members) < 2:
            raise PartitionError(
                f"validation {share:g}: class {label} has one training sample, so none can be held out",
                hint="keep more samples of each class, or set protocol.validation: 0",
            )
        held.append(members[: max(1, round(share * len(members)))])
    validation = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), validation), validation


def partition(labels: Indices, clients: int, spec: Partition, random: np.random.Generator) -> tuple[Indices, ...]:
    """Spreads one task's samples, told by their labels `[n]`, over the clients.

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
    """Draws proportions `[N]` that sum to 1.

    Where the draw underflows (small beta) one client gets all, where it overflows (large beta) all get the same.
    """
    drawn = random.dirichlet(np.full(clients, beta))
    if not np.isclose(drawn.sum(), 1.0):
        if beta > 1:
            return np.full(clients, 1 / clients)
        drawn = np.zeros(clients)
        drawn[random.integers(clients)] = 1.0
    return drawn


def _cut(members: Indices, shares: Shares) -> list[Indices]:
    """Cuts `members` at the rounded cumulative shares; every member is in exactly one piece."""
    bounds = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
    return np.split(members, np.clip(bounds, 0, len(members)))
