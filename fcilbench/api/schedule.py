"""Schedules: which client trains on what, for how long. A method may rearrange one (`Aggregator.build_schedule`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fcilbench.api.task import Task

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Phase:
    """A stretch of training after which the model is evaluated.

    Attributes:
        task: The classes that are trained.
        clients: For each registered client the positions of its training samples (may be empty).
        rounds: Communication rounds R.
        epochs: Local epochs E per round.
        batch_size: Samples per local step.
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
        """Returns the number of clients sampled each round, at least one.

        Args:
            participation: The protocol's share, used unless the phase has its own.
        """
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
