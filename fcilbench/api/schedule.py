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
class Convergence:
    """Early stopping: a phase ends when accuracy on held-out samples no longer rises, and its best round is kept.

    Prechelt 1998, "Early Stopping - But When?"; the patience is that of Goodfellow et al. 2016, algorithm 7.1.

    Attributes:
        held_out: Share of each class's samples, in (0, 1), that the phase's client gives up for this; a class of one
            sample gives none.
        patience: Rounds in a row without a larger accuracy after which the phase ends.
    """

    held_out: float
    patience: int


@dataclass(frozen=True)
class Phase:
    """A stretch of training after which the model is evaluated.

    Attributes:
        task: The classes that are trained.
        clients: For each registered client the positions of its training samples (may be empty).
        epochs: Local epochs E in each round; 0: clients train nothing in this phase, and send their `statistics` alone.
        after: Index of the last stream task that has been seen when this phase ends.
        restart: Whether the phase starts from the initial model instead of the current one.
        participation: Share of the clients sampled each round; `None`: the protocol's.
        until: If given, the phase ends once it has converged, and `rounds` is the largest number of its rounds. They
            are then one training run: the optimiser keeps its moments from round to round. It has one client.
    """

    task: Task
    clients: tuple[Indices, ...]
    rounds: int
    epochs: int
    batch_size: int
    after: int
    restart: bool = False
    participation: float | None = None
    until: Convergence | None = None

    def __post_init__(self) -> None:
        if self.until is not None and len(self.clients) != 1:
            raise ValueError(f"a phase that trains until convergence has one client, not {len(self.clients)}")

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
