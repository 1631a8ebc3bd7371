"""The law of bytes: the traffic of a run, counted a second time beside the runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.message import Message, matches, nbytes
from fcilbench.testing.law import LawBroken, Laws
from fcilbench.testing.laws.messages import CLIENT_HOOKS, SERVER_HOOKS, spy
from fcilbench.testing.subject import AggregatorSubject, tensors

LAWS: Laws[AggregatorSubject] = Laws()


@dataclass
class _Count:
    """What the kit counts beside the runner: each client's copies of all that it was sent.

    Attributes:
        up: Bytes of uploads so far.
        down: Bytes of downloads so far.
        vectors_now: The global vector that is sent in this round, and its trainable part.
        model: The same by piece, and its integer buffers.
        message: The broadcasts of this round.
        size: Bytes of a client's update.
        models: The model that each client holds, by piece.
        vectors: The same as vectors.
        broadcasts: The broadcast tensors that each client holds.
    """

    up: int = 0
    down: int = 0
    vectors_now: tuple[torch.Tensor, ...] = ()
    model: dict[str, torch.Tensor] = field(default_factory=dict)
    message: dict[str, torch.Tensor] = field(default_factory=dict)
    size: int = 0
    models: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    vectors: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    broadcasts: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def look(self, server: Any, method: Aggregator) -> None:
        """Notes the global model and what a client uploads of it."""
        vector, wire = server.vector.clone(), method.wire(server)
        self.vectors_now = (vector, vector[server.layout.trainable])
        pieces, buffers = server.layout.pieces, server.layout.buffers.start
        self.model = {piece.name: vector[piece.span] for piece in pieces}
        sent = [p.name for p in pieces if matches(p.name, wire.up)]
        trained = {p.name for p in pieces if matches(p.name, wire.train) or p.start >= buffers}
        self.size = nbytes({name: self.model[name] for name in sent if name in trained})
        self.model["counters"] = server.counters.clone()
        self.size += nbytes({"counters": server.counters})

    def receive(self, client: int, trains: bool) -> None:
        """A client is sent what differs from what it holds; a training-free one gets a model only once."""
        models = list(self.vectors.get(client, ()))
        if trains or client not in self.models:
            held = self.models.get(client, {})
            self.down += nbytes({k: v for k, v in self.model.items() if k not in held or not _same(v, held[k])})
            self.models[client], self.vectors[client] = self.model, self.vectors_now
            models += self.vectors_now
        own = self.broadcasts.setdefault(client, {})
        for name, value in self.message.items():
            known = [*models, *([own[name]] if name in own else [])]
            if not any(_same(value, one) for one in known):
                self.down += nbytes({name: value})
            own[name] = value


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


@LAWS.law(
    "measured-bytes",
    "the traffic of a run is the payload of its messages, to the byte",
    fix="send everything through messages: model, `statistics`, `task_statistics`, `broadcast` and `task_broadcast`",
)
def measured_bytes(subject: AggregatorSubject) -> None:
    """Adds up `numel * itemsize` of all messages of two tasks beside the runner's own count."""
    count = _Count()

    def told(hook: str, argument: Any, call: Callable[[], Message]) -> Message:
        message = call()
        if hook == "task_broadcast":
            count.message = tensors(message)
        elif hook == "broadcast":
            count.message |= tensors(message)
            count.look(argument, subject.make())
        elif hook == "statistics":
            count.receive(argument.id, subject.trains)
            count.up += count.size if subject.trains else 0
        if hook in CLIENT_HOOKS:
            count.up += nbytes(message)
        return message

    def watch(aggregator: Aggregator) -> None:
        spy(CLIENT_HOOKS + SERVER_HOOKS, told)(aggregator)
        _count_task_end(aggregator, count, subject)

    cost = subject.run(watch, tasks=(4, 6)).outcome.cost
    if (cost.bytes_up, cost.bytes_down) != (count.up, count.down):
        raise LawBroken(
            f"the runner counted {cost.bytes_up} bytes up and {cost.bytes_down} down; the messages hold {count.up} "
            f"and {count.down}"
        )


def _count_task_end(aggregator: Aggregator, count: _Count, subject: AggregatorSubject) -> None:
    """The broadcast for task statistics is of the model after the task's last merge."""
    merge, statistics = aggregator.aggregate, aggregator.task_statistics

    def aggregate(updates: Any, server: Any) -> None:
        merge(updates, server)
        count.look(server, subject.make())
        count.message = {}

    def task_statistics(client: Any) -> Message:
        count.receive(client.id, subject.trains)
        return statistics(client)

    aggregator.aggregate = aggregate  # type: ignore[method-assign]
    aggregator.task_statistics = task_statistics  # type: ignore[method-assign]
