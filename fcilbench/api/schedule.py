"""Tasks, and schedules: which client trains on what, for how long. A method may rearrange one (`build_schedule`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """One step of the class-incremental stream, in internal labels `0..C-1` (the order of arrival).

    Attributes:
        index: Position t in the stream, from 0.
        offset: Number of classes of all earlier tasks.
    """

    index: int
    offset: int
    size: int

    @property
    def seen(self) -> int:
        """Number of classes seen once this task has been learned."""
        return self.offset + self.size

    @property
    def classes(self) -> slice:
        """Slice of this task's classes in a head or a logit row."""
        return slice(self.offset, self.seen)

    def local(self, labels: torch.Tensor) -> torch.Tensor:
        """Maps internal labels of this task to `0..size-1`."""
        return labels - self.offset


@dataclass(frozen=True)
class Phase:
    """A stretch of training after which the model is evaluated.

    Attributes:
        task: The classes that are trained.
        clients: For each registered client the positions of its training samples (may be empty).
        epochs: Local epochs E in each round.
        after: Index of the last stream task that has been seen when this phase ends.
        restart: Whether the phase starts from the initial model instead of the current one.
        participation: Share of the clients sampled each round; `None`: the protocol's.
    """

    task: Task
    clients: tuple[Indices, ...]
    rounds: int
    epochs: int
    batch_size: int
    after: int
    restart: bool = False
    participation: float | None = None

    def sampled(self, participation: float) -> int:
        """Returns the number of clients sampled each round, at least one, by the phase's share or the protocol's."""
        share = participation if self.participation is None else self.participation
        return max(1, round(share * len(self.clients)))


@dataclass(frozen=True)
class Schedule:
    """All phases of an experiment, in order.

    Attributes:
        phases: The phases; a federated method has one per task.
        federated: Whether messages cross a network; if not, no traffic is counted.
    """

    phases: tuple[Phase, ...]
    federated: bool = True
