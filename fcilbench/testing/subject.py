"""An aggregator under test: runs and single rounds of it on the bench, with what it did recorded."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.message import Message
from fcilbench.api.predict import Module, Predictors
from fcilbench.api.server import Updates
from fcilbench.engine.meters import Stopwatch
from fcilbench.federation.build import build
from fcilbench.federation.experiment import Federation, RoundContext, Unsupported
from fcilbench.federation.round import run_round, update_rows
from fcilbench.federation.run import run_experiment
from fcilbench.federation.server import FederationServer
from fcilbench.spec.outcome import Outcome
from fcilbench.testing.bench import Bench, Edit, quiet_torch
from fcilbench.testing.law import LawBroken, NotApplicable

Watch = Callable[[Aggregator], None]
"""Puts spies on an instance before it runs."""


@dataclass(frozen=True)
class Deployed:
    """What a method had at the end of a task.

    Attributes:
        theta: Global vector `[D]`.
        modules: State vectors by name.
        predictors: As the method returned them.
        server: The server of the run.
        tasks: Number of tasks seen.
    """

    theta: torch.Tensor
    modules: Mapping[str, torch.Tensor]
    predictors: Predictors
    server: FederationServer
    tasks: int


@dataclass(frozen=True)
class Run:
    """A complete run.

    Attributes:
        outcome: What the runner measured.
        ends: What was deployed at the end of each phase.
    """

    outcome: Outcome
    ends: tuple[Deployed, ...]


@dataclass(frozen=True)
class Stage:
    """A server in front of its first merge, and the updates that real clients have sent it."""

    aggregator: Aggregator
    federation: Federation
    updates: Updates

    def merge(self, updates: Updates) -> FederationServer:
        """Returns a copy of the server after the method has merged `updates`."""
        server = copy.deepcopy(self.federation.server)
        self.aggregator.aggregate(updates, server)
        return server


@dataclass
class AggregatorSubject:
    """An aggregator class with hyperparameters.

    Attributes:
        cls: The plugin's class.
        module: Module that an entry point names; its import is timed.
        options: Hyperparameters that differ from the defaults.
        bench: Where it is tried.
    """

    cls: type[Aggregator]
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    bench: Bench = field(default_factory=Bench)

    def make(self) -> Aggregator:
        """Returns a fresh instance."""
        return self.cls(self.cls.Params.model_validate(dict(self.options)))

    @property
    def trains(self) -> bool:
        """Whether clients of the method train."""
        return self.make().trains

    @cached_property
    def whole(self) -> Run:
        """An undisturbed run over uneven tasks."""
        return self.run()

    def run(
        self,
        watch: Watch | None = None,
        edit: Edit | None = None,
        workdir: Path | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **changes: Any,
    ) -> Run:
        """Runs a fresh instance on the bench.

        Raises:
            NotApplicable: If the method declines the experiment.
        """
        aggregator = self.make()
        ends: list[Deployed] = []
        if watch is not None:
            watch(aggregator)
        own = aggregator.predictors

        def predictors(server: Any) -> Predictors:
            given = own(server)
            modules = {name: _vector(make()) for name, make in given.modules.items()}
            ends.append(Deployed(server.vector.clone(), modules, given, server, len(server.tasks)))
            return given

        aggregator.predictors = predictors  # type: ignore[method-assign]
        experiment = self.bench.experiment(aggregator, edit, **changes)
        with quiet_torch(), tempfile.TemporaryDirectory() as folder:
            try:
                outcome = run_experiment(experiment, workdir or Path(folder), on_event)
            except Unsupported as reason:
                raise NotApplicable(f"the method declines this experiment: {reason}") from reason
        return Run(outcome, tuple(ends))

    def stage(self, edit: Edit | None = None, **changes: Any) -> Stage:
        """Runs the first round of a fresh instance up to the merge.

        Raises:
            NotApplicable: If the method declines the experiment.
        """
        aggregator = self.make()
        got: list[Updates] = []
        try:
            federation = build(self.bench.experiment(aggregator, edit, **changes))
        except Unsupported as reason:
            raise NotApplicable(f"the method declines this experiment: {reason}") from reason
        server, phase = federation.server, federation.schedule.phases[0]
        server.enter(phase.task, phase.after)
        aggregator.begin(server)
        own = aggregator.aggregate

        def record(updates: Updates, server: Any) -> None:  # noqa: ARG001 - the merge comes later
            got.append(updates)

        aggregator.aggregate = record  # type: ignore[method-assign]
        rows = update_rows(federation)
        with quiet_torch():
            run_round(federation, RoundContext(phase, 0), rows, Stopwatch(rows.device))
        aggregator.aggregate = own  # type: ignore[method-assign]
        if not got:
            raise LawBroken("no client sent a finite update in the first round")
        return Stage(aggregator, federation, got[0])


def _vector(built: Module | torch.Tensor) -> torch.Tensor:
    return (built.vector if isinstance(built, Module) else built).detach().clone()


def same_bits(one: Run, two: Run) -> str | None:
    """Returns where two runs first differ in deployed vectors, accuracies or bytes, or `None`."""
    for index, (left, right) in enumerate(zip(one.ends, two.ends, strict=False)):
        for name in sorted({*left.modules, *right.modules}):
            if name not in left.modules or name not in right.modules:
                return f"module {name!r} is deployed in one of them only, at the end of task {index}"
            if not torch.equal(left.modules[name], right.modules[name]):
                gap = float((left.modules[name] - right.modules[name]).abs().max())
                return f"module {name!r} differs by up to {gap:.3g} at the end of task {index}"
    if one.outcome.model_digest != two.outcome.model_digest:
        return "the final global models differ"
    if one.outcome.accuracy != two.outcome.accuracy:
        return "the accuracies differ"
    return None


def gap(found: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> float:
    """Returns the largest difference, relative to the largest magnitude of `scale`; 0 if both are zero."""
    if found.numel() == 0:
        return 0.0
    difference, size = float((found - expected).abs().max()), float(scale.abs().max())
    return difference / size if size > 0 else difference


def tensors(message: Message) -> dict[str, torch.Tensor]:
    """Returns copies of a message's tensors."""
    return {name: value.detach().clone() for name, value in message.items()}
