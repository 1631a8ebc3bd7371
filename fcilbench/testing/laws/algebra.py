"""Laws of merging: what any sensible server does with one client, equal clients, no client, another order."""

from __future__ import annotations

from dataclasses import replace

import torch

from fcilbench.api.server import Updates
from fcilbench.testing.bench import spread
from fcilbench.testing.law import LawBroken, Laws, NotApplicable
from fcilbench.testing.subject import AggregatorSubject, gap, same_bits, tensors

LAWS: Laws[AggregatorSubject] = Laws()

_TOLERANCE = 1e-3
"""Relative to the largest entry of the update; merges solve linear systems."""


def _trains(subject: AggregatorSubject) -> None:
    if not subject.trains:
        raise NotApplicable("the method is training-free: clients send no model")


@LAWS.law(
    "one-client",
    "a round with one client ends at that client's model",
    fix="normalise the merge weights to sum 1; if the method scales or projects by nature, declare the law in `breaks`",
)
def one_client(subject: AggregatorSubject) -> None:
    """The step is the one client's update."""
    _trains(subject)
    stage = subject.stage(spread([1.0]))
    _expect_step(stage.merge(stage.updates).vector, stage.federation.server.vector, stage.updates.delta[0])


@LAWS.law(
    "identical-clients",
    "clients that all send the same model give that model",
    fix="average, do not add; if equal updates cancel or add up by nature, declare the law in `breaks`",
)
def identical_clients(subject: AggregatorSubject) -> None:
    """Three times the same update and statistics."""
    _trains(subject)
    stage = subject.stage(spread([1.0]))
    one = stage.updates
    same = Updates(one.delta.expand(3, -1).clone(), one.samples * 3, (0, 1, 2), one.statistics * 3, one.layout)
    _expect_step(stage.merge(same).vector, stage.federation.server.vector, one.delta[0])


def _expect_step(theta: torch.Tensor, before: torch.Tensor, step: torch.Tensor) -> None:
    wrong = gap(theta, before + step, step)
    if not wrong <= _TOLERANCE:
        ratio = float((theta - before) @ step / (step @ step))
        raise LawBroken(f"the step is {ratio:.3g} times the client's update along it, off by up to {wrong:.2g} of it")


@LAWS.law(
    "empty-client",
    "a client without samples changes nothing, bit for bit",
    fix="count the rows of `updates`, not registered clients; `updates.clients` says whose they are",
)
def empty_client(subject: AggregatorSubject) -> None:
    """Two clients, and the same two beside one without samples."""
    two = subject.run(edit=spread([0.6, 0.4]), tasks=(4, 6), rounds=1)
    three = subject.run(edit=spread([0.6, 0.4, 0.0]), tasks=(4, 6), rounds=1)
    if difference := same_bits(two, three):
        raise LawBroken(f"with and without the empty client, {difference}")


@LAWS.law(
    "permutation",
    "the order of the clients does not matter",
    fix="treat rows alike and take weights from `updates.weights`; if clients have a topology, declare the law in "
    "`breaks`",
)
def permutation(subject: AggregatorSubject) -> None:
    """Five unequal clients, forwards and shuffled; equal but for the rounding of sums."""
    stage = subject.stage(spread([0.3, 0.1, 0.25, 0.2, 0.15]), clients=5, tasks=(5, 5))
    given = stage.updates
    count = len(given.clients)
    order = [*range(1, count, 2), *range(0, count, 2)]  # no two neighbours of five stay neighbours
    shuffled = Updates(
        given.delta[order],
        tuple(given.samples[i] for i in order),
        tuple(given.clients[i] for i in order),
        tuple(given.statistics[i] for i in order),
        given.layout,
    )
    one, two = stage.merge(given), stage.merge(shuffled)
    scale = one.vector - stage.federation.server.vector
    wrong = gap(two.vector, one.vector, scale if bool(scale.any()) else one.vector)
    if not wrong <= _TOLERANCE:
        raise LawBroken(f"in another order the step differs by up to {wrong:.2g} of its largest entry")


@LAWS.law(
    "inputs-untouched",
    "merging changes neither the clients' updates nor their statistics",
    fix="clone before an in-place operation: `updates.delta.clone()`; `weights @ delta` and `delta * x` need none",
)
def inputs_untouched(subject: AggregatorSubject) -> None:
    """Updates and statistics are compared with copies made before the merge."""
    stage = subject.stage()
    updates = stage.updates
    kept = updates.delta.clone(), [tensors(message) for message in updates.statistics]
    stage.merge(replace(updates))
    if not torch.equal(updates.delta, kept[0]):
        raise LawBroken("`updates.delta` was changed in place")
    for client, before, after in zip(updates.clients, kept[1], updates.statistics, strict=True):
        for name, value in before.items():
            if name not in after or not torch.equal(after[name], value):
                raise LawBroken(f"statistics {name!r} of client {client} were changed in place")
