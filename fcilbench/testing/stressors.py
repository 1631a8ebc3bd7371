"""Checks of stressors, in small real federations: whom they touch, what they depend on, what they leave alone."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fcilbench.api import Aggregator, Client, Message, Partition, Server, Stressor, Updates, UsageError, Wire
from fcilbench.federation.experiment import Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.testing.bench import BENCHES
from fcilbench.testing.check import SHARED, CheckFailed, Checks, NotApplicable, Subject
from fcilbench.testing.subject import copies, same_tree

CHECKS: Checks[StressorSubject] = Checks(SHARED)
_CLIENTS = 5
_HOOKS = ("affected", "labels", "share", "behind", "upload", "uploads", "touches")


class _Method(Aggregator):
    """FedAvg, with statistics of floats and of whole numbers, that notes the uploads of the first round."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[int, dict[str, torch.Tensor]] | None = None

    def statistics(self, client: Client) -> Message:
        features = torch.cat([client.net.features(batch.inputs) for batch in client.batches()])
        return {"sums": features.sum(0).double(), "counts": torch.tensor([len(features)])}

    def aggregate(self, updates: Updates, server: Server) -> None:
        if self.first is None:
            parts = zip(updates.clients, updates.delta, updates.statistics, strict=True)
            self.first = {client: {"delta": delta.clone(), **copies(told)} for client, delta, told in parts}
        server.state["sums"] = server.state.get("sums", 0.0) + sum(told["sums"] for told in updates.statistics)
        super().aggregate(updates, server)


class _Votes(Aggregator):
    """Sends the signs of its update in int8, as statistics beside no update."""

    def wire(self, server: Server) -> Wire:
        return Wire(up=())

    def statistics(self, client: Client) -> Message:
        return {"votes": (client.net.vector - client.received_model).sign().to(torch.int8)}

    def aggregate(self, updates: Updates, server: Server) -> None:
        votes = torch.stack([told["votes"].float() for told in updates.statistics]).sum(0)
        server.step(1e-2 * votes.sign())


@dataclass(frozen=True)
class _Run:
    """What a run deploys, the uploads of its first round by client id, and the clients that were affected."""

    digest: str
    affected: frozenset[int]
    first: Mapping[int, Mapping[str, torch.Tensor]]


@dataclass
class StressorSubject(Subject[Stressor]):
    """A stressor class with hyperparameters, in a federation of five equal clients."""

    base: ClassVar[type[Stressor]] = Stressor

    def run(
        self,
        stressor: Stressor,
        method: type[Aggregator] = _Method,
        wrappers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> _Run:
        """Runs a method under a stressor; `wrappers` are called in the place of its hooks."""
        aggregator, drawn = method(), set[int]()

        def affected(own: Callable[..., Any], *arguments: Any) -> Any:
            found = own(*arguments)
            drawn.update(found)
            return found

        for hook, wrapper in [*(wrappers or {}).items(), ("affected", affected)]:
            setattr(stressor, hook, partial(wrapper, getattr(stressor, hook)))
        settings: dict[str, Any] = {"clients": _CLIENTS, "batch_size": 4, "tasks": (5, 3, 2)}
        experiment = BENCHES[0].experiment(aggregator, stressor=stressor, partition=Partition(kind="iid"), **settings)
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_experiment(experiment, Path(folder))
        return _Run(outcome.model_digest, frozenset(drawn), getattr(aggregator, "first", None) or {})

    @cached_property
    def clean(self) -> _Run:
        """The federation without a stressor."""
        return self.run(Stressor())

    @cached_property
    def stressed(self) -> _Run:
        """The federation under the stressor; the checks do not apply if the stressor declines it."""
        try:
            found = self.run(self.make())
        except Unsupported as reason:
            raise NotApplicable(f"it declines the kit's federation: {reason}") from reason
        except UsageError as error:
            raise NotApplicable(f"{error}; the kit has {_CLIENTS} clients") from error
        if not found.affected:
            raise NotApplicable("it affects no client")
        return found


@CHECKS.add
def affected_clients(subject: StressorSubject) -> None:
    """The affected clients are different registered ones, and the same for the same stream.

    Fix: draw ids below `clients` from `random`; `fcilbench.api.SomeClients` does.
    """
    _ = subject.stressed
    for seed in range(3):
        one, two = (list(subject.make().affected(_CLIENTS, np.random.default_rng(seed))) for _ in range(2))
        if one != two:
            raise CheckFailed(f"one stream gives {one} and {two}")
        if len(set(one)) < len(one) or not set(one) <= set(range(_CLIENTS)):
            raise CheckFailed(f"of {_CLIENTS} clients it affects {one}")


@CHECKS.add
def felt(subject: StressorSubject) -> None:
    """A run under the stressor ends elsewhere than the clean one: FedAvg on five clients, three tasks of two rounds.

    Fix: act with the default hyperparameters; a stressor that seldom does names the check in `breaks`.
    """
    if subject.stressed.digest == subject.clean.digest:
        raise CheckFailed("no bit of the model or of the state is another one")


@CHECKS.add
def others_untouched(subject: StressorSubject) -> None:
    """In the first round the uploads of clients that are not affected are those of the clean federation, bit for bit.

    Fix: change only what you are given; draw from the given stream, never from a global generator.
    """
    stressed, clean = subject.stressed, subject.clean.first
    found = stressed.first
    for client in sorted(clean.keys() - stressed.affected):
        if not same_tree(dict(clean[client]), dict(found.get(client, {}))):
            raise CheckFailed(f"client {client} is not affected, and sends something else")


@CHECKS.add
def coordinates(subject: StressorSubject) -> None:
    """What it does depends on its arguments alone: each call may go to another object, in a process of another state.

    Fix: keep nothing on `self`, and draw from the given streams: runs are resumed, and clients run in any order.
    """

    def call(hook: str, _own: Callable[..., Any], *arguments: Any) -> Any:
        seed = random.randrange(1000)
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        return getattr(subject.make(), hook)(*arguments)

    found = subject.run(subject.make(), wrappers={hook: partial(call, hook) for hook in _HOOKS})
    if found.digest != subject.stressed.digest:
        raise CheckFailed("with a new object for each call the run ends elsewhere")


@CHECKS.add
def arguments_kept(subject: StressorSubject) -> None:
    """It changes neither the labels nor the messages that it is given.

    Fix: return new arrays and tensors: `tensor * factor`, not `tensor.mul_(factor)`.
    """

    def labels(own: Callable[..., Any], given: Any, *more: Any) -> Any:
        before = given.copy()
        found = own(given, *more)
        if not np.array_equal(given, before):
            raise CheckFailed("`labels` changes its argument in place")
        return found

    def uploads(own: Callable[..., Any], messages: Any, turn: Any) -> Any:
        before = copy.deepcopy(messages)
        found = own(messages, turn)
        if not same_tree(dict(messages), dict(before)):
            raise CheckFailed("the messages that it is given are changed in place")
        return found

    _ = subject.stressed
    subject.run(subject.make(), wrappers={"labels": labels, "uploads": uploads})


@CHECKS.add
def whole_numbers(subject: StressorSubject) -> None:
    """A method that uploads nothing but votes in int8 is hit, or its cell is declined: it never passes as robust.

    Fix: let `touches` say which tensors your hooks can change; by default floats alone.
    """
    _ = subject.stressed
    try:
        attacked = subject.run(subject.make(), _Votes)
    except Unsupported:
        return
    if attacked.digest == subject.run(Stressor(), _Votes).digest:
        raise CheckFailed("no bit of the model is another one, and the cell counts as a stressed one")


@CHECKS.add
def neutral(subject: StressorSubject) -> None:
    """With the hyperparameters in `neutral` a run is the clean one, bit for bit.

    Fix: correct `neutral`, or the arithmetic at that value.
    """
    if not subject.cls.neutral:
        raise NotApplicable("no hyperparameters make it neutral")
    if subject.run(subject.make(**subject.cls.neutral)).digest != subject.clean.digest:
        raise CheckFailed(f"with {dict(subject.cls.neutral)} the run ends elsewhere than the clean one")
