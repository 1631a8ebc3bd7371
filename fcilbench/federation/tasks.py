"""What the seeds fix: random streams as coordinates, and the stream of tasks.

A random stream is a hash of where it is used, never of what was drawn before. The aggregator is never a coordinate, so
all methods share class order, partition, client sampling and batch order; and running clients in another order, on
another device or after a resume changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fcilbench.api.schedule import Indices
from fcilbench.api.task import Task
from fcilbench.errors import UsageError


def stream(seed: int, *coordinates: str | int) -> np.random.Generator:
    """Returns the generator at `coordinates`, e.g. `stream(seed, "batches", task, round, client)`.

    Example:
        >>> stream(1, "batches", 0).integers(100) == stream(1, "batches", 0).integers(100)
        np.True_
    """
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
