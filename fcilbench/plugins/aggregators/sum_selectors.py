"""How SUM picks the task module of a sample, per sample, without labels or batch statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fcilbench.api.predict import DecisionRule, Logits, MostConfident
from fcilbench.api.task import Task

PROTOTYPES = "prototypes"
"""Module whose head ranks classes by the distance of their mean feature."""
_MODULE = "task-{}"


@dataclass(frozen=True)
class LargestEnergy:
    """Picks the task whose slice, under its own module, has the largest logsumexp; then its argmax. Ties: earlier."""

    def modules(self, tasks: Sequence[Task], true: Task | None) -> Sequence[str]:
        """Returns the modules of all tasks."""
        return tuple(_MODULE.format(task.index) for task in tasks)

    def __call__(self, logits: Logits, tasks: Sequence[Task], true: Task | None) -> torch.Tensor:
        """Returns the best class of the task with the largest energy."""
        slices = [logits[_MODULE.format(task.index)][:, task.classes] for task in tasks]
        energy = torch.stack([slice_.float().logsumexp(dim=1) for slice_ in slices])
        return _best(slices, tasks, energy.argmax(dim=0))


@dataclass(frozen=True)
class NearestPrototype:
    """Picks the task of the nearest class mean in the frozen feature space; then the argmax of that task's module."""

    def modules(self, tasks: Sequence[Task], true: Task | None) -> Sequence[str]:
        """Returns the modules of all tasks, and the prototypes."""
        return (*(_MODULE.format(task.index) for task in tasks), PROTOTYPES)

    def __call__(self, logits: Logits, tasks: Sequence[Task], true: Task | None) -> torch.Tensor:
        """Returns the best class of the nearest prototype's task."""
        nearest = logits[PROTOTYPES].argmax(dim=1)
        ends = torch.tensor([task.seen for task in tasks], device=nearest.device)
        slices = [logits[_MODULE.format(task.index)][:, task.classes] for task in tasks]
        return _best(slices, tasks, torch.searchsorted(ends, nearest, right=True))


def selector(name: str) -> DecisionRule:
    """Returns the rule of a selector: `confidence`, `energy` or `prototype`."""
    rules: dict[str, DecisionRule] = {
        "confidence": MostConfident(_MODULE),
        "energy": LargestEnergy(),
        "prototype": NearestPrototype(),
    }
    return rules[name]


def _best(slices: Sequence[torch.Tensor], tasks: Sequence[Task], winner: torch.Tensor) -> torch.Tensor:
    """Returns for each sample the best class in the slice of its winning task, int64 `[n]`."""
    labels = [slice_.argmax(dim=1) + task.offset for slice_, task in zip(slices, tasks, strict=True)]
    return torch.stack(labels).gather(0, winner[None])[0]
