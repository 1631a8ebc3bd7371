"""How a method answers a test sample, under each of the three task identities.

`none`: one model, all classes seen so far compete. `inferred`: the method picks the task of each sample, without labels
or batch statistics. `oracle`: the true task is given, as Kim and Do 2026 assume (appendix, "Inference-Time Task
Selection"). They are different measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from fcilbench.api.schedule import Task
from fcilbench.spec.protocol import TaskIdentity

Logits = Mapping[str, torch.Tensor]
"""Logits `[n, seen]` of the samples under each module."""


class DecisionRule(Protocol):
    """A rule from logits to predicted internal labels. It looks at each sample alone.

    A rule with an attribute `features = True` is also given, as the keyword `features`, the features `[n, F]` of the
    samples under each of its modules, by the module's name.
    """

    def modules(self, tasks: Sequence[Task], true: Task | None) -> Sequence[str]:
        """Returns the names of the modules whose logits the rule reads; `true` is given for `oracle` only."""

    def __call__(self, logits: Logits, tasks: Sequence[Task], true: Task | None) -> torch.Tensor:
        """Returns predicted labels int64 `[n]`."""


@dataclass(frozen=True)
class Module:
    """One deployed model.

    Attributes:
        vector: State vector `[D]`.
        frozen: Tensors in place of parameters or buffers outside the state vector, by their names in the network, e.g.
            a dense merged weight that is neither trained nor sent.
    """

    vector: torch.Tensor
    frozen: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Predictors:
    """The models that a method deploys and the rules by which it answers with them.

    Attributes:
        modules: By name, functions that build each deployed model when it is needed; a tensor `[D]` stands for
            `Module(tensor)`.
    """

    modules: Mapping[str, Callable[[], Module | torch.Tensor]]
    rules: Mapping[TaskIdentity, DecisionRule] = field(default_factory=dict)


@dataclass(frozen=True)
class AllClasses:
    """Argmax over all classes seen so far, under one module."""

    module: str = "global"

    def modules(self, tasks: Sequence[Task], true: Task | None) -> Sequence[str]:
        """Returns the one module."""
        return (self.module,)

    def __call__(self, logits: Logits, tasks: Sequence[Task], true: Task | None) -> torch.Tensor:
        """Returns the class with the largest logit."""
        return logits[self.module].argmax(dim=1)


@dataclass(frozen=True)
class TrueTask:
    """Argmax inside the true task's slice, under the module of this name; `{}` in it stands for the task's index."""

    module: str = "global"

    def modules(self, tasks: Sequence[Task], true: Task | None) -> Sequence[str]:
        """Returns the module of the true task."""
        if true is None:
            raise ValueError("TrueTask answers only where the true task is given (task identity `oracle`)")
        return (self.module.format(true.index),)

    def __call__(self, logits: Logits, tasks: Sequence[Task], true: Task | None) -> torch.Tensor:
        """Returns the class of the true task with the largest logit."""
        (name,) = self.modules(tasks, true)
        assert true is not None
        return logits[name][:, true.classes].argmax(dim=1) + true.offset


@dataclass(frozen=True)
class MostConfident:
    """Picks the task whose slice, under its own module, has the largest `confidence`; then its argmax.

    Ties go to the earlier task.
    """

    module: str = "global"

    def modules(self, tasks: Sequence[Task], true: Task | None) -> Sequence[str]:
        """Returns the modules of all tasks."""
        return tuple(dict.fromkeys(self.module.format(task.index) for task in tasks))

    def __call__(self, logits: Logits, tasks: Sequence[Task], true: Task | None) -> torch.Tensor:
        """Returns the most confident task's best class."""
        found, label = [], []
        for task in tasks:
            own = logits[self.module.format(task.index)].float()
            found.append(confidence(own, task))
            label.append(own[:, task.classes].argmax(dim=1) + task.offset)
        winner = torch.stack(found).argmax(dim=0)
        return torch.stack(label).gather(0, winner[None])[0]


def confidence(logits: torch.Tensor, task: Task) -> torch.Tensor:
    """Returns how certain a task's slice is of its best class, float32 `[n]`, from logits `[n, seen]`.

    These are the log odds of the slice's largest softmax probability. The probability of a task of a single class would
    always be 1, so there the softmax is over all classes seen.
    """
    if task.size > 1:
        own = logits[:, task.classes]
        return log_odds(own, own.max(dim=1)[1])
    return log_odds(logits, torch.full_like(logits[:, 0], task.offset, dtype=torch.int64))


def log_odds(logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns log(p / (1 - p)), float32 `[n]`, for the softmax probabilities p of classes `[n]` of logits `[n, C]`.

    Log odds have the order of the probabilities, which are rounded to 1 where a logit stands out by 17 or more: such
    samples, and such tasks, would tie. For a single class, which is certain, it is the largest number; NaN where p is.
    """
    exact = logits.double()
    own = exact.gather(1, index[:, None])[:, 0]
    rest = exact.scatter(1, index[:, None], -torch.inf).logsumexp(dim=1)
    odds = (own - rest).float().clamp(max=torch.finfo(torch.float32).max)
    return torch.where(exact.amax(dim=1).isfinite(), odds, torch.nan)


ONE_SCALE: Mapping[TaskIdentity, DecisionRule] = {"none": AllClasses(), "inferred": AllClasses(), "oracle": TrueTask()}
"""Rules of one module whose logits rank the classes of all tasks on one scale: the best class tells the task."""
