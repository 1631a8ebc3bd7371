"""Checks of state: runs repeat and resume, and client and server share nothing but messages."""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fcilbench.api import Aggregator
from fcilbench.spec.events import ExperimentEvent
from fcilbench.spec.protocol import Runtime
from fcilbench.testing.bench import shake_generators
from fcilbench.testing.check import CheckFailed, Checks
from fcilbench.testing.subject import CLIENT_MESSAGES, AggregatorSubject, Run, Stopped, difference, unwrapped

CHECKS: Checks[AggregatorSubject] = Checks()

_VISIT_HOOKS = ("begin_client_task", "client_replay", "finish", "encode", *CLIENT_MESSAGES)
_CLIENT_HOOKS = ("loss", "gradient", "query", *_VISIT_HOOKS)
_SERVER_HOOKS = ("begin", "begin_task", "replay", "broadcast", "decode", "aggregate", "end_task")


@CHECKS.add
def repeatable(subject: AggregatorSubject) -> None:
    """The same experiment gives the same bits, whatever was drawn from global generators before.

    Fix: draw from `client.random(purpose)` or `server.random(purpose)`, never from a global generator; sum rows in
    client-id order.
    """
    seeds = itertools.count(20)

    def shaken(own: Callable[..., Any], *arguments: Any) -> Any:
        shake_generators(next(seeds))
        return own(*arguments)

    if found := difference(subject.whole, subject.run(dict.fromkeys((*_SERVER_HOOKS, *_VISIT_HOOKS), shaken))):
        raise CheckFailed(f"between two runs of one experiment, {found}")


@CHECKS.add
def resume(subject: AggregatorSubject) -> None:
    """A run that stops between two tasks or two rounds and is resumed ends bit for bit like an uninterrupted one.

    Fix: keep tensors, numbers, strings, lists and dicts of these in `server.state` and `client.state`; clone what is
    kept of `server.vector`, whose memory changes with every step; attributes of the plugin object are lost.
    """
    whole, runtime = subject.whole, Runtime(checkpoint="round")
    rounds, stops = set[tuple[int, int]](), [5, 6]  # in the first and in the second round of the third task

    def listen(event: ExperimentEvent) -> None:
        if event["event"] == "round":
            rounds.add((event["task"], event["round"]))
            if len(rounds) in stops:
                stops.remove(len(rounds))
                raise Stopped  # before the round is saved

    resumed: Run | None = None
    with tempfile.TemporaryDirectory() as folder:
        while resumed is None:
            with suppress(Stopped):
                resumed = subject.run(workdir=Path(folder), on_event=listen, runtime=runtime)
    if ignored := [text for text in resumed.outcome.warnings if text.startswith("a checkpoint was ignored")]:
        raise CheckFailed(f"`server.state` or `client.state` cannot be saved and loaded: {ignored[0]}")
    if found := difference(whole, resumed):
        raise CheckFailed(f"stopped in two rounds of the third task and resumed, {found}")
    costs = whole.outcome.cost, resumed.outcome.cost
    if len({(cost.bytes_up, cost.bytes_down, cost.client_state) for cost in costs}) > 1:
        raise CheckFailed("a resumed run counts other bytes, on the wire or of what clients keep")


@CHECKS.add
def isolation(subject: AggregatorSubject) -> None:
    """Client and server share nothing but messages: client hooks may run on another copy of the plugin object.

    Fix: what clients need goes into `broadcast`, what the server needs into `statistics`; the client's own memory is
    `client.state`.
    """
    aggregator, template = subject.make(), list[Aggregator]()

    def begin(own: Callable[..., Any], *arguments: Any) -> None:
        template.append(_detached(aggregator))
        own(*arguments)

    def call(hook: str, _own: Callable[..., Any], *arguments: Any) -> Any:
        return getattr(_detached((template or [aggregator])[0]), hook)(*arguments)

    wrappers: dict[str, Callable[..., Any]] = {"begin": begin, **{hook: partial(call, hook) for hook in _CLIENT_HOOKS}}
    if found := difference(subject.whole, subject.run(wrappers, aggregator=aggregator)):
        raise CheckFailed(f"with the client half on an object of its own, {found}")


def _detached(aggregator: Aggregator) -> Aggregator:
    """Returns a copy without wrapped hooks whose containers are its own; tensors and modules are shared."""
    other = object.__new__(type(aggregator))
    for name, value in {**_of_class(aggregator), **unwrapped(aggregator)}.items():
        setattr(other, name, copy.copy(value) if isinstance(value, dict | list | set) else value)
    return other


def _of_class(aggregator: Aggregator) -> dict[str, Any]:
    """Returns the containers that all objects of the plugin's classes share."""
    kinds = [kind for kind in reversed(type(aggregator).__mro__) if issubclass(kind, Aggregator)][1:]
    found = {name: value for kind in kinds for name, value in vars(kind).items() if not name.startswith("__")}
    return {name: value for name, value in found.items() if isinstance(value, dict | list | set)}


@CHECKS.add
def attributes(subject: AggregatorSubject) -> None:
    """The plugin object keeps no tensor and no module: neither the network nor anything that was learned.

    Fix: keep state in `server.state` and `client.state`; read the network through `net`, `client` and `server`.
    """
    aggregator = subject.whole.aggregator
    for path, kind in _held("self", {**_of_class(aggregator), **unwrapped(aggregator)}, {id(aggregator)}):
        raise CheckFailed(f"`{path}` is a {kind}")


def _held(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Finds tensors and modules in containers, closures and attributes of objects."""
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    parts: dict[str, Any] = {}
    if isinstance(value, torch.Tensor | nn.Module):
        yield path, type(value).__name__
    elif isinstance(value, dict):
        parts = {f".{name}" if path == "self" else f"[{name!r}]": each for name, each in value.items()}
    elif isinstance(value, list | tuple | set | frozenset):
        parts = {f"[{i}]": each for i, each in enumerate(value)}
    elif closure := getattr(value, "__closure__", None):
        parts = {f" (closure {i})": cell.cell_contents for i, cell in enumerate(closure)}
    else:
        parts = {f".{name}": each for name, each in getattr(value, "__dict__", {}).items()}
        parts |= {".__self__": value.__self__} if hasattr(value, "__self__") else {}
    for name, each in parts.items():
        yield from _held(path + name, each, seen)
