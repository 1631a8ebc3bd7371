"""Laws of state: repeatable, restorable, and nothing shared between the halves but messages."""

from __future__ import annotations

import copy
import io
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.spec.protocol import Runtime
from fcilbench.testing.bench import UNEVEN
from fcilbench.testing.law import LawBroken, Laws
from fcilbench.testing.subject import AggregatorSubject, same_bits

LAWS: Laws[AggregatorSubject] = Laws()

_STATE = "keep state in `server.state` (and `client.state`) as tensors, numbers, strings, lists and dicts of these"


class _Stopped(Exception):  # noqa: N818 -- what a crash looks like from inside
    """The run was cut off."""


@LAWS.law(
    "repeatable",
    "the same experiment gives the same bits, whatever was drawn before and in whatever order clients are simulated",
    fix="draw from `client.random(purpose)` or `server.random(purpose)`, never from a global generator; "
    "sum rows in client-id order",
)
def repeatable(subject: AggregatorSubject) -> None:
    """A second run from other global generators, with the clients simulated in reverse order."""
    from fcilbench.federation import round as visits

    def reverse(clients: Sequence[int]) -> Sequence[int]:
        return clients[::-1]

    first = subject.whole
    torch.manual_seed(20)
    np.random.seed(21)
    random.seed(22)
    forward, visits.execution_order = visits.execution_order, reverse
    try:
        second = subject.run()
    finally:
        visits.execution_order = forward
    if difference := same_bits(first, second):
        raise LawBroken(f"between two runs of one experiment, {difference}")


@LAWS.law(
    "state-round-trip",
    "the server's state survives torch.save and torch.load(weights_only=True), and goes on bit for bit",
    fix=f"{_STATE}; clone what is kept of `server.vector`, whose memory changes with every step",
)
def state_round_trip(subject: AggregatorSubject) -> None:
    """Before each hook of the server the state is replaced by its saved and loaded copy."""

    def watch(aggregator: Aggregator) -> None:
        for hook in ("broadcast", "task_broadcast", "aggregate", "end_task"):
            own = getattr(aggregator, hook)

            def call(*arguments: Any, own: Callable[..., Any] = own) -> Any:
                server = next(each for each in arguments if hasattr(each, "vector"))
                server.state = _reload(server.state)
                return own(*arguments)

            setattr(aggregator, hook, call)

    if difference := same_bits(subject.whole, subject.run(watch)):
        raise LawBroken(f"with its state saved and loaded, {difference}")


def _reload(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
        buffer.seek(0)
        loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise LawBroken(f"`server.state` ({sorted(state)}) cannot be saved and loaded: {reason[0]}") from error
    return loaded


@LAWS.law(
    "resume-rounds",
    "a run that stops between two rounds of a task and is resumed ends bit for bit like an uninterrupted one",
    fix=f"{_STATE}; attributes of the plugin object are lost",
)
def resume_rounds(subject: AggregatorSubject) -> None:
    """Stopped in the second round of the third task, before it is saved."""
    _resume(subject, 6)


@LAWS.law(
    "resume-tasks",
    "a run that stops between two tasks and is resumed ends bit for bit like an uninterrupted one",
    fix=f"{_STATE}; attributes of the plugin object are lost",
)
def resume_tasks(subject: AggregatorSubject) -> None:
    """Stopped in the first round of the third task, before it is saved."""
    _resume(subject, 5)


def _resume(subject: AggregatorSubject, stop: int) -> None:
    """Cuts a run off at the end of its `stop`-th round, before that is saved, and resumes with a fresh instance."""
    seen = 0

    def listen(event: dict[str, Any]) -> None:
        nonlocal seen
        seen += event["event"] == "round"
        if seen == stop:
            raise _Stopped

    runtime = Runtime(eval_batch_size=64, checkpoint="round")
    with tempfile.TemporaryDirectory() as folder:
        try:
            resumed = subject.run(workdir=Path(folder), on_event=listen, runtime=runtime)
        except _Stopped:
            resumed = subject.run(workdir=Path(folder), runtime=runtime)
    whole = subject.whole
    missing = len(whole.ends) - len(resumed.ends)
    tail = type(whole)(whole.outcome, whole.ends[missing:])
    if difference := same_bits(tail, resumed):
        raise LawBroken(f"stopped at round {stop} of {2 * len(UNEVEN)} and resumed, {difference}")
    if whole.outcome.cost.bytes_up != resumed.outcome.cost.bytes_up:
        raise LawBroken("a resumed run counts other bytes")


@LAWS.law(
    "isolation",
    "client and server share nothing but messages",
    fix="what clients need goes into `broadcast`, what the server needs into `statistics`; the client's own memory is "
    "`client.state`",
)
def isolation(subject: AggregatorSubject) -> None:
    """Every call of a client hook gets a copy of the plugin object as it was before the first round."""

    def watch(aggregator: Aggregator) -> None:
        template: list[Aggregator] = []
        begin = aggregator.begin

        def start(server: Any) -> None:
            template.append(_detached(aggregator))
            begin(server)

        aggregator.begin = start  # type: ignore[method-assign]
        for hook in ("loss", "gradient", "statistics", "task_statistics"):

            def call(*arguments: Any, hook: str = hook) -> Any:
                return getattr(_detached(template[0]), hook)(*arguments)

            setattr(aggregator, hook, call)

    if difference := same_bits(subject.whole, subject.run(watch)):
        raise LawBroken(f"with the client half on an object of its own, {difference}")


def _detached(aggregator: Aggregator) -> Aggregator:
    """Returns a copy without spies, whose containers are its own; tensors and modules are shared."""
    other = copy.copy(aggregator)
    for name, value in list(vars(other).items()):
        if callable(value) and hasattr(type(aggregator), name):
            delattr(other, name)
        elif isinstance(value, dict | list | set):
            setattr(other, name, copy.copy(value))
    return other
