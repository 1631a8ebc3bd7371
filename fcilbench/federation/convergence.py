"""Training until convergence: a phase ends when accuracy on held-out samples no longer rises; its best round is kept.

The rule is early stopping with patience (Prechelt 1998; Goodfellow et al. 2016, algorithm 7.1). The held-out samples
are training samples of the phase's one client: no test sample decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from fcilbench.api import AllClasses, Phase, Predictors, Schedule
from fcilbench.api.schedule import Indices
from fcilbench.errors import PartitionError
from fcilbench.federation.evaluation import Evaluator
from fcilbench.federation.tasks import hold_out
from fcilbench.spec.outcome import UNCONVERGED


@dataclass
class Plateau:
    """The rule: after `patience` rounds in a row without a larger accuracy there is nothing more to wait for.

    Attributes:
        best: The largest accuracy so far.
        best_round: The first round that had it, from 1; 0 before the first round.
        rounds: Rounds so far.
    """

    patience: int
    best: float = -1.0
    best_round: int = 0
    rounds: int = 0

    def rises(self, accuracy: float) -> bool:
        """Takes the accuracy of one more round; returns whether it is larger than all before."""
        self.rounds += 1
        if accuracy <= self.best:
            return False
        self.best, self.best_round = accuracy, self.rounds
        return True

    @property
    def reached(self) -> bool:
        """Whether the accuracy has converged."""
        return self.rounds - self.best_round >= self.patience


@dataclass
class Best:
    """A phase that trains until convergence: its plateau, and the global model `[D]` and counters of its best round."""

    plateau: Plateau
    vector: torch.Tensor
    counters: torch.Tensor

    @classmethod
    def start(cls, phase: Phase, vector: torch.Tensor, counters: torch.Tensor) -> Best | None:
        """Begins a phase; `None` for one of a fixed number of rounds."""
        return cls(Plateau(phase.until.patience), vector.clone(), counters.clone()) if phase.until else None

    def offer(self, accuracy: float, vector: torch.Tensor, counters: torch.Tensor) -> None:
        """Takes the model of one more round with its accuracy on the held-out samples."""
        if self.plateau.rises(accuracy):
            self.vector.copy_(vector)
            self.counters.copy_(counters)

    @property
    def doubt(self) -> str:
        """What a reader of the row must know of a phase that has ended by its largest number of rounds; else empty."""
        if self.plateau.reached:
            return ""
        return (
            f"{UNCONVERGED}: all {self.plateau.rounds} rounds were trained, and accuracy on the held-out samples last "
            f"rose in round {self.plateau.best_round}"
        )

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps."""
        return {"plateau": asdict(self.plateau), "vector": self.vector, "counters": self.counters}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Best:
        """Makes anew what `state` returned."""
        return cls(Plateau(**state["plateau"]), state["vector"].clone(), state["counters"].clone())


def hold_out_samples(
    schedule: Schedule, labels: Indices, random: Callable[[int], np.random.Generator]
) -> tuple[Schedule, tuple[Indices, ...]]:
    """Takes the held-out samples from the client of each phase that trains until convergence.

    `labels` are the internal labels of all training samples, as the clients have them; `random` makes the generator of
    a phase from the last task that it sees.

    Returns:
        The schedule without them, and the sorted positions of the held-out samples of each phase.

    Raises:
        PartitionError: If no sample of a phase can be held out.
    """
    phases, held = [], []
    for phase in schedule.phases:
        if phase.until is None:
            phases.append(phase)
            held.append(np.zeros(0, dtype=np.int64))
            continue
        own = phase.clients[0]
        kept, away = hold_out(labels[own], phase.until.held_out, random(phase.after))
        if not len(away):
            raise PartitionError(
                "training until convergence: no class has a second training sample, so none can be held out",
                hint="train for a fixed number of epochs (`joint`: epochs: match), or keep more samples of each class",
            )
        phases.append(replace(phase, clients=(own[kept],)))
        held.append(own[away])
    return replace(schedule, phases=tuple(phases)), tuple(held)


def held_out_accuracy(evaluator: Evaluator, phase: Phase, vector: torch.Tensor) -> float:
    """Returns the share of the held-out samples that the global model `[D]` answers right, among all classes seen.

    The `evaluator` has the held-out samples as the only task that it knows.
    """
    everything = replace(phase.task, index=0, offset=0, size=phase.task.seen)
    predictors = Predictors({"global": lambda: vector}, {"none": AllClasses()})
    return evaluator.accuracy(predictors, [everything], ["none"])["none"][0]
