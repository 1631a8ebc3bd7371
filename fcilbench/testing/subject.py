"""An aggregator under test: recorded runs of it on a bench.

The kit uses the hooks of `fcilbench.api` and `run_experiment`, and nothing else of the federation.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from fcilbench.api import Aggregator, Message, Predictors, Server, Updates
from fcilbench.federation.evaluation import as_module
from fcilbench.federation.experiment import Unsupported
from fcilbench.federation.run import Listener, run_experiment
from fcilbench.spec.outcome import Outcome
from fcilbench.testing.bench import BENCHES, Bench, Edit
from fcilbench.testing.check import CheckFailed, NotApplicable, Subject

CLIENT_MESSAGES, SERVER_MESSAGES = ("statistics", "task_statistics"), ("broadcast",)

Wrappers = Mapping[str, Callable[..., Any]]
"""What is called in the place of a hook: `wrapper(own, *arguments)`, where `own` is the hook itself."""


class Stopped(Exception):  # noqa: N818 -- how the kit ends a run early
    """Ends a run of which the kit has seen enough."""


@dataclass(frozen=True)
class TaskEnd:
    """The global vector `[D]` at the end of a task, and the state vectors of the deployed modules by name."""

    vector: torch.Tensor
    modules: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Run:
    """A complete run: the instance, what the runner measured, and the end of each task."""

    aggregator: Aggregator
    outcome: Outcome
    ends: Sequence[TaskEnd]


@dataclass(frozen=True)
class Stage:
    """A server before its first merge, with the method's `aggregate` and the updates of real clients."""

    aggregate: Callable[[Updates, Server], None]
    updates: Updates
    server: Server

    def merge(self, updates: Updates) -> torch.Tensor:
        """Returns the global vector after the method has merged `updates`, and restores the server."""
        server, before, state = self.server, self.server.vector.clone(), self.server.state
        server.state = copy.deepcopy(state)
        self.aggregate(updates, server)
        after = server.vector.clone()
        server.vector.copy_(before)
        server.state = state
        return after


@dataclass
class AggregatorSubject(Subject[Aggregator]):
    """An aggregator class with hyperparameters, on a bench."""

    base = Aggregator
    bench: Bench = BENCHES[0]

    @property
    def where(self) -> str:
        """Name of the bench on which the plugin is tried, for messages."""
        return self.bench.name

    @cached_property
    def whole(self) -> Run:
        """An undisturbed run over uneven tasks."""
        return self.run()

    def run(
        self,
        wrappers: Wrappers | None = None,
        edit: Edit | None = None,
        aggregator: Aggregator | None = None,
        workdir: Path | None = None,
        on_event: Listener | None = None,
        **changes: Any,
    ) -> Run:
        """Runs an instance, by default a fresh one, on the bench; the check does not apply if the method declines.

        `edit` and `changes` are those of `Bench.experiment`; `workdir` holds the checkpoint of a run that is resumed.
        """
        aggregator, ends = aggregator or self.make(), list[TaskEnd]()

        def recorded(own: Callable[[Server], Predictors], server: Server) -> Predictors:
            given = own(server)
            modules = {name: as_module(build()).vector.clone() for name, build in given.modules.items()}
            ends.append(TaskEnd(server.vector.clone(), modules))
            return given

        for hook, wrapper in [*(wrappers or {}).items(), ("predictors", recorded)]:
            setattr(aggregator, hook, partial(wrapper, getattr(aggregator, hook)))
        experiment = self.bench.experiment(aggregator, edit, **changes)
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = run_experiment(experiment, workdir or Path(folder), on_event)
            except Unsupported as reason:
                raise NotApplicable(f"the method declines this experiment: {reason}") from reason
        return Run(aggregator, outcome, ends)

    def stage(self, edit: Edit | None = None, **changes: Any) -> Stage:
        """Runs the first round of a fresh instance up to the merge."""
        got: list[Stage] = []

        def stop(own: Callable[[Updates, Server], None], updates: Updates, server: Server) -> None:
            got.append(Stage(own, updates, server))
            raise Stopped

        try:
            self.run({"aggregate": stop}, edit, **changes)
        except Stopped:
            return got[0]
        raise CheckFailed("no client sent a finite update in the first round")

    def keeps(self, *hooks: str) -> bool:
        """Returns whether the method leaves all of these hooks as FedAvg has them."""
        return all(getattr(self.cls, hook) is getattr(Aggregator, hook) for hook in hooks)

    def require_training(self) -> None:
        """Ends a check that does not apply to methods whose clients do not train."""
        if not self.make().trains:
            raise NotApplicable("the method is training-free: clients send no model")


def unwrapped(aggregator: Aggregator) -> dict[str, Any]:
    """Returns the attributes of an instance without wrapped hooks."""
    return {
        name: value for name, value in vars(aggregator).items() if not hasattr(Aggregator, name) or name == "params"
    }


def copies(message: Message) -> dict[str, torch.Tensor]:
    """Returns copies of a message's tensors."""
    return {name: value.detach().clone() for name, value in message.items()}


def difference(one: Run, two: Run) -> str | None:
    """Returns what differs between two runs, or `None` if all models, states and accuracies are equal."""
    for index, row in enumerate(one.outcome.accuracy["oracle"]):
        if row != two.outcome.accuracy["oracle"][index]:
            return f"the accuracies differ after task {index}"
    return "the final models or states differ" if one.outcome.model_digest != two.outcome.model_digest else None


def same_tree(one: Any, two: Any) -> bool:
    """Returns whether two states are equal: tensors, numbers, strings, and lists and dicts of these."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bool(torch.equal(one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same_tree(value, two[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same_tree, one, two))
    return type(one) is type(two) and bool(one == two)


def gap(found: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> float:
    """Returns the largest difference, relative to the largest magnitude of `scale`, unless that is zero."""
    if found.numel() == 0:
        return 0.0
    difference, size = float((found - expected).abs().max()), float(scale.abs().max())
    return difference / size if size > 0 else difference
