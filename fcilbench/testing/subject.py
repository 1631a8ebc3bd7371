"""An aggregator under test: runs of it on a bench, with what it did recorded.

The kit uses the hooks of `fcilbench.api` and `run_experiment`, and nothing else of the federation.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from fcilbench.api import Aggregator, DecisionRule, Message, Module, Predictors, Server, Task, Updates
from fcilbench.federation.experiment import Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.spec.outcome import Outcome
from fcilbench.testing.bench import BENCHES, Bench, Edit, quiet_torch
from fcilbench.testing.check import CheckFailed, NotApplicable, Subject

CLIENT_HOOKS = ("loss", "gradient", "query", "statistics", "task_statistics")
SERVER_HOOKS = ("begin", "begin_task", "replay", "broadcast", "task_broadcast", "aggregate", "end_task")
CLIENT_MESSAGES, SERVER_MESSAGES = ("statistics", "task_statistics"), ("broadcast", "task_broadcast")

Wrappers = Mapping[str, Callable[..., Any]]
"""By hook what is called in its place: `wrapper(own, *arguments)`, where `own` is the hook itself."""


class Stopped(Exception):  # noqa: N818 -- how the kit ends a run early
    """The kit has seen enough of a run."""


@dataclass(frozen=True)
class Answer:
    """What a decision rule was asked about the test samples of one task, and the labels that it answered."""

    identity: str
    rule: DecisionRule
    logits: Mapping[str, torch.Tensor]
    tasks: Sequence[Task]
    true: Task | None
    labels: torch.Tensor


@dataclass(frozen=True)
class TaskEnd:
    """The end of a task: global vector `[D]`, deployed modules, what the method returned, what its rules answered."""

    vector: torch.Tensor
    modules: Mapping[str, Module]
    predictors: Predictors
    server: Server
    tasks: Sequence[Task]
    answers: list[Answer] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """A complete run: the instance that ran, what the runner measured, and the end of each phase."""

    aggregator: Aggregator
    outcome: Outcome
    ends: tuple[TaskEnd, ...]


@dataclass(frozen=True)
class Stage:
    """A server before its first merge, the method's `aggregate`, and the updates that real clients sent."""

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

    bench: Bench = BENCHES[0]

    @property
    def where(self) -> str:
        """Name of the bench."""
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
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **changes: Any,
    ) -> Run:
        """Runs an instance, by default a fresh one, on the bench; the check does not apply if the method declines.

        `edit` and `changes` are those of `Bench.experiment`. `workdir` holds the checkpoint if the run is resumed or
        will be, and `on_event` is told of every round and task as it ends.
        """
        aggregator, ends = aggregator or self.make(), list[TaskEnd]()
        recorder = {"predictors": lambda own, server: _record(own(server), server, ends)}
        for hook, wrapper in {**(wrappers or {}), **recorder}.items():
            setattr(aggregator, hook, partial(wrapper, getattr(aggregator, hook)))
        experiment = self.bench.experiment(aggregator, edit, **changes)
        with quiet_torch(), tempfile.TemporaryDirectory() as folder:
            try:
                outcome = run_experiment(experiment, workdir or Path(folder), on_event)
            except Unsupported as reason:
                raise NotApplicable(f"the method declines this experiment: {reason}") from reason
        return Run(aggregator, outcome, tuple(ends))

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

    def require_training(self) -> None:
        """Raises NotApplicable if clients of the method do not train."""
        if not self.make().trains:
            raise NotApplicable("the method is training-free: clients send no model")


def unwrapped(aggregator: Aggregator) -> dict[str, Any]:
    """Returns the attributes of an instance without the hooks that the kit has wrapped."""
    return {
        name: value for name, value in vars(aggregator).items() if not hasattr(Aggregator, name) or name == "params"
    }


class _RecordedRule:
    """A decision rule that keeps what it was asked and what it answered."""

    def __init__(self, identity: str, rule: DecisionRule, answers: list[Answer]) -> None:
        self.modules = rule.modules
        self._identity, self._rule, self._answers = identity, rule, answers

    def __call__(self, logits: Mapping[str, torch.Tensor], tasks: Sequence[Task], true: Task | None) -> torch.Tensor:
        labels = self._rule(logits, tasks, true)
        self._answers.append(Answer(self._identity, self._rule, dict(logits), tuple(tasks), true, labels))
        return labels


def _record(given: Predictors, server: Server, ends: list[TaskEnd]) -> Predictors:
    modules = {name: _copied(make()) for name, make in given.modules.items()}
    ends.append(TaskEnd(server.vector.clone(), modules, given, server, tuple(server.tasks)))
    answers = ends[-1].answers
    return replace(given, rules={name: _RecordedRule(name, rule, answers) for name, rule in given.rules.items()})


def _copied(module: Module | torch.Tensor) -> Module:
    whole = module if isinstance(module, Module) else Module(module)
    return Module(whole.vector.detach().clone(), copies(whole.frozen))


def copies(message: Message) -> dict[str, torch.Tensor]:
    """Returns copies of a message's tensors."""
    return {name: value.detach().clone() for name, value in message.items()}


def same_bits(one: Run, two: Run) -> str | None:
    """Returns where two runs first differ in deployed models or accuracies, or `None`."""
    for index, ends in enumerate(zip(one.ends, two.ends, strict=False)):
        left, right = ({(k, part): v for k, m in end.modules.items() for part, v in _parts(m)} for end in ends)
        if different := left.keys() ^ right.keys():
            return f"{sorted(different)[0]} is deployed in one of them only, at the end of task {index}"
        for (name, part), value in left.items():
            if not torch.equal(value, right[name, part]):
                wrong = float((value - right[name, part]).abs().max())
                return f"the {part} of module {name!r} differs by up to {wrong:.3g} at the end of task {index}"
    if one.outcome.model_digest != two.outcome.model_digest:
        return "the final models or states differ"
    return "the accuracies differ" if one.outcome.accuracy != two.outcome.accuracy else None


def _parts(module: Module) -> list[tuple[str, torch.Tensor]]:
    return [("vector", module.vector), *module.frozen.items()]


def gap(found: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> float:
    """Returns the largest difference, relative to the largest magnitude of `scale` unless that is zero."""
    if found.numel() == 0:
        return 0.0
    difference, size = float((found - expected).abs().max()), float(scale.abs().max())
    return difference / size if size > 0 else difference
