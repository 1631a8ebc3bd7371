"""Checks of selectors: what they see and send in small federations of FedAvg, and that the method is left alone."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from fcilbench.api import Aggregator, Client, Message, Selector, SelectorServer, Stressor, Task, TestSamples, nbytes
from fcilbench.federation.run import Listener, run_experiment
from fcilbench.plugins.stressors.clients import Dropout
from fcilbench.spec.events import ExperimentEvent
from fcilbench.spec.outcome import Outcome, SelectorCost
from fcilbench.spec.protocol import Runtime
from fcilbench.testing.bench import BENCHES, UNEVEN, Bench, shake_generators
from fcilbench.testing.check import SHARED, CheckFailed, Checks, NotApplicable, Subject

SELECTOR_CHECKS: Checks[SelectorSubject] = Checks(SHARED)

KEY = "inferred:it"
"""What the kit scores under the selector."""

Picked = tuple[Message, TestSamples, Sequence[Task], torch.Tensor]


class _Stopped(Exception):  # noqa: N818 -- how the kit ends a run early
    """Ends a run that is to be resumed."""


@dataclass(frozen=True)
class Run:
    """A complete run: what the runner measured, what the rule was asked and answered, and the bytes that were sent."""

    outcome: Outcome
    picked: Sequence[Picked]
    sent: int

    @property
    def bill(self) -> SelectorCost:
        """What the selector cost."""
        return self.outcome.cost.selectors.get("it", SelectorCost())


@dataclass
class SelectorSubject(Subject[Selector]):
    """A selector class with hyperparameters, on a bench."""

    base = Selector
    bench: Bench = field(default_factory=lambda: BENCHES[0])

    @property
    def where(self) -> str:
        """Name of the bench on which the plugin is tried, for messages."""
        return self.bench.name

    @cached_property
    def whole(self) -> Run:
        """An undisturbed run over uneven tasks."""
        return self.run()

    @cached_property
    def plain(self) -> Outcome:
        """The same run under the method's own rule alone."""
        with tempfile.TemporaryDirectory() as folder:
            return run_experiment(self.bench.experiment(Aggregator()), Path(folder))

    def run(
        self,
        workdir: Path | None = None,
        on_event: Listener | None = None,
        before: Callable[[Selector], Selector] = lambda selector: selector,
        **changes: Any,
    ) -> Run:
        """Runs FedAvg under the method's own rule and under a fresh instance; `changes` are those of the bench.

        `before` is called before every hook and returns the object that the hook is to run on.
        """
        selector, picked, sent = self.make(), list[Picked](), [0]
        bare = self.make()

        def pick(fitted: Message, samples: TestSamples, tasks: Sequence[Task]) -> torch.Tensor | None:
            answer = before(bare).pick(fitted, samples, tasks)
            if answer is not None:
                picked.append((fitted, samples, tuple(tasks), answer))
            return answer

        def fit(server: SelectorServer, statistics: Mapping[int, Message]) -> Message:
            return before(bare).fit(server, statistics)

        def statistics(client: Client) -> Message:
            message = before(bare).statistics(client)
            sent[0] += nbytes(message)
            return message

        selector.pick, selector.fit, selector.statistics = pick, fit, statistics  # type: ignore[method-assign]
        experiment = self.bench.experiment(Aggregator(), selectors={"inferred": Selector(), KEY: selector}, **changes)
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_experiment(experiment, workdir or Path(folder), on_event)
        return Run(outcome, picked, sent[0])

    def require_same(self, other: Run, what: str) -> None:
        """Fails a check whose run picks other tasks than the undisturbed one, or sends other bytes."""
        if other.outcome.accuracy != self.whole.outcome.accuracy or other.bill != self.whole.bill:
            raise CheckFailed(f"{what}, it picks other tasks or costs another number of bytes")

    def needs_a_rule(self) -> None:
        """Ends a check that does not apply to a selector that leaves the choice to the method."""
        if not self.cls.picks():
            raise NotApplicable("it has no rule: the method's own answers")


@SELECTOR_CHECKS.add
def rule(subject: SelectorSubject) -> None:
    """It picks tasks, and declares what it reads: features of a network, logits of the tasks' modules, or both.

    Fix: override `pick`, and set `features = "start"` (or "model") or `heads = True`.
    """
    subject.needs_a_rule()
    cls = subject.cls
    if cls.features not in ("none", "start", "model"):
        raise CheckFailed(f"features is {cls.features!r}, not none, start or model")
    if cls.features == "none" and not cls.heads:
        raise CheckFailed("its rule sees nothing of a sample")
    if not subject.whole.picked:
        raise CheckFailed("its rule was never asked")


@SELECTOR_CHECKS.add
def per_sample(subject: SelectorSubject) -> None:
    """The task of a sample does not depend on the samples that are asked with it.

    Fix: no statistics over `samples`; what the rule needs to know of the data is fitted on the server.
    """
    subject.needs_a_rule()
    for fitted, samples, tasks, together in subject.whole.picked:
        for row in range(len(together)):
            one = TestSamples(samples.features[row : row + 1], [own[row : row + 1] for own in samples.logits])
            if (alone := subject.make().pick(fitted, one, tasks)) is None or int(alone[0]) != int(together[row]):
                raise CheckFailed("a sample alone gets another task than among others, or another instance decides so")


@SELECTOR_CHECKS.add
def method_untouched(subject: SelectorSubject) -> None:
    """Model, accuracies and bytes of the method are the same with the selector as without it.

    Fix: change nothing of `client.net` and `client.network`, remove hooks again, and draw from `client.random`.
    """
    subject.needs_a_rule()
    whole, plain = subject.whole.outcome, subject.plain
    if whole.model_digest != plain.model_digest:
        raise CheckFailed("the method's model is another one")
    if {key: own for key, own in whole.accuracy.items() if key != KEY} != plain.accuracy:
        raise CheckFailed("the method's own accuracies are others")
    if (whole.cost.bytes_up, whole.cost.bytes_down) != (plain.cost.bytes_up, plain.cost.bytes_down):
        raise CheckFailed("the method sends another number of bytes")


@SELECTOR_CHECKS.add
def measured_bytes(subject: SelectorSubject) -> None:
    """All that clients send for it is counted, and so is all that its rule reads.

    Fix: return from `fit` whatever `pick` needs; the plugin object keeps nothing between them.
    """
    if not subject.cls.learns():
        raise NotApplicable("clients send nothing for it")
    run = subject.whole
    if run.sent == 0 or run.bill.bytes_up != run.sent:
        raise CheckFailed(f"clients returned {run.sent} bytes of statistics, {run.bill.bytes_up} were sent")
    if run.bill.module == 0:
        raise CheckFailed("`fit` returned nothing, so its rule reads what is not deployed")


@SELECTOR_CHECKS.add
def repeatable(subject: SelectorSubject) -> None:
    """The same experiment picks the same tasks, whatever was drawn from global generators before.

    Fix: draw from `client.random(purpose)`, never from a global generator.
    """
    subject.needs_a_rule()
    seeds = itertools.count(20)

    def shake(selector: Selector) -> Selector:
        shake_generators(next(seeds))
        return selector

    subject.require_same(subject.run(before=shake), "run again")


@SELECTOR_CHECKS.add
def isolation(subject: SelectorSubject) -> None:
    """Every client, the server and the deployed rule have an object of their own, and share nothing but messages.

    Fix: send in `statistics` what `fit` needs, keep in `server.state` what it needs of earlier tasks, and return what
    `pick` needs.
    """
    subject.needs_a_rule()
    subject.require_same(subject.run(before=lambda _: subject.make()), "with an object of its own for every call")


@SELECTOR_CHECKS.add
def resume(subject: SelectorSubject) -> None:
    """A run that stops between two rounds and is resumed picks as an uninterrupted one.

    Fix: keep tensors, numbers, strings, lists and dicts of these in `server.state`; attributes of the object are lost.
    """
    subject.needs_a_rule()
    runtime, rounds = Runtime(checkpoint="round"), itertools.count(1)

    def listen(event: ExperimentEvent, rounds: Iterator[int] = rounds) -> None:
        if event["event"] == "round" and next(rounds) == 5:  # in the third task
            raise _Stopped

    with tempfile.TemporaryDirectory() as folder:
        again = partial(subject.run, workdir=Path(folder), runtime=runtime)
        try:
            again(on_event=listen)
        except _Stopped:
            resumed = again()
        else:
            raise CheckFailed(f"the run did not reach round 5 of {2 * len(UNEVEN)}")
    if ignored := [text for text in resumed.outcome.warnings if text.startswith("a checkpoint was ignored")]:
        raise CheckFailed(f"`server.state` cannot be saved and loaded: {ignored[0]}")
    subject.require_same(resumed, "stopped and resumed")


@SELECTOR_CHECKS.add
def silent_clients(subject: SelectorSubject) -> None:
    """It picks a task of those seen where no client, or only one, sends anything.

    Fix: `fit` may get an empty map; start from zeros of `server.layout.classes` and `server.layout.features`.
    """
    subject.needs_a_rule()
    for silent in (2, 3):
        stress: Stressor = Dropout(Dropout.Params(clients=silent, rate=1.0))
        run = subject.run(stressor=stress) if silent < 3 else _without_statistics(subject)
        if None in run.outcome.accuracy[KEY][-1]:
            raise CheckFailed(f"with {silent} silent clients there is no accuracy")


def _without_statistics(subject: SelectorSubject) -> Run:
    """Runs the selector where nothing that clients send for it arrives, while they train."""

    class Lost(Stressor):
        def affected(self, clients: int, random: Any) -> Sequence[int]:
            return range(clients)

        def upload(self, message: dict[str, torch.Tensor], random: Any) -> dict[str, torch.Tensor] | None:
            return message if "delta" in message else None

    return subject.run(stressor=Lost())
