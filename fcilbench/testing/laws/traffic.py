"""The law of bytes: the traffic of a run, counted a second time beside the runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.message import Message, nbytes
from fcilbench.testing.law import LawBroken, Laws
from fcilbench.testing.laws.messages import CLIENT_HOOKS, SERVER_HOOKS, spy
from fcilbench.testing.subject import AggregatorSubject

LAWS: Laws[AggregatorSubject] = Laws()


@dataclass
class _Ledger:
    """What the kit counts beside the runner; all in bytes.

    Attributes:
        model: Size of the global model.
        up: Uploads so far.
        down: Downloads so far.
        version: Version of the global model that is broadcast.
        start: Its version when the current task began.
        briefing: Size of the task's broadcast.
        kept: Size of the part of it that is the model at the task's start.
        extra: Size of the round's broadcast.
        task: Last task seen.
        versions: Backbone, head and buffers of every version of the global model so far.
        counters: Size of its integer buffers.
        held: Version that each client holds.
        briefed: Task whose broadcast each client has.
    """

    model: int = 0
    up: int = 0
    down: int = 0
    version: int = 0
    start: int = 0
    briefing: int = 0
    kept: int = 0
    extra: int = 0
    task: int = -1
    versions: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    counters: int = 0
    held: dict[int, int] = field(default_factory=dict)
    briefed: dict[int, int] = field(default_factory=dict)

    def open(self, server: Any, briefing: Message, held_model: str | None) -> None:
        """A round begins."""
        if len(server.tasks) != self.task:
            self.task, self.start = len(server.tasks), server.version
        self.model = nbytes({"theta": server.vector, "counters": server.counters})
        self.look(server)
        self.briefing = nbytes(briefing)
        self.kept = nbytes({name: value for name, value in briefing.items() if name == held_model})

    def look(self, server: Any) -> None:
        """The global model may have changed."""
        self.version, self.counters = server.version, nbytes({"counters": server.counters})
        slices = (server.layout.backbone, server.layout.head, server.layout.buffers)
        self.versions[server.version] = tuple(server.vector[part].clone() for part in slices)

    def visit(self, client: int, trains: bool) -> None:
        """A client receives the broadcasts, and sends its model if it trains."""
        has_start = self.start in (self.held.get(client), self.version)
        self.receive(client, trains)
        self.down += self.extra
        if self.briefed.get(client) != self.task:
            self.down += self.briefing - (self.kept if has_start else 0)
            self.briefed[client] = self.task
        self.up += self.model if trains else 0

    def receive(self, client: int, trains: bool) -> None:
        """A client is sent what of the global model differs from the version it holds, unless it needs no other."""
        held = self.held.get(client)
        if held != self.version and (trains or held is None):
            old: Sequence[torch.Tensor | None] = (None, None, None) if held is None else self.versions[held]
            pairs = zip(old, self.versions[self.version], strict=True)
            changed = [new for before, new in pairs if before is None or not torch.equal(before, new)]
            self.down += self.counters + sum(nbytes({"part": part}) for part in changed)
            self.held[client] = self.version


@LAWS.law(
    "measured-bytes",
    "the traffic of a run is the payload of its messages, to the byte",
    fix="send everything through messages: model, `statistics`, `task_statistics`, `broadcast` and `task_broadcast`",
)
def measured_bytes(subject: AggregatorSubject) -> None:
    """Adds up `numel * itemsize` of all messages of two tasks beside the runner's own count."""
    ledger = _Ledger()

    def told(hook: str, argument: Any, call: Callable[[], Message]) -> Message:
        message = call()
        if hook == "task_broadcast":
            ledger.open(argument, message, subject.make().held_model)
        elif hook == "broadcast":
            ledger.extra = nbytes(message)
            ledger.look(argument)
        elif hook == "statistics":
            ledger.visit(argument.id, subject.trains)
        if hook in CLIENT_HOOKS:
            ledger.up += nbytes(message)
        return message

    def watch(aggregator: Aggregator) -> None:
        spy(CLIENT_HOOKS + SERVER_HOOKS, told)(aggregator)
        _count_task_end(aggregator, ledger, subject.trains)

    cost = subject.run(watch, tasks=(4, 6)).outcome.cost
    if (cost.bytes_up, cost.bytes_down) != (ledger.up, ledger.down):
        raise LawBroken(
            f"the runner counted {cost.bytes_up} bytes up and {cost.bytes_down} down; the messages hold {ledger.up} "
            f"and {ledger.down}"
        )


def _count_task_end(aggregator: Aggregator, ledger: _Ledger, trains: bool) -> None:
    """The broadcast for task statistics is of the model after the task's last merge."""
    merge, statistics = aggregator.aggregate, aggregator.task_statistics

    def aggregate(updates: Any, server: Any) -> None:
        merge(updates, server)
        ledger.look(server)

    def task_statistics(client: Any) -> Message:
        ledger.receive(client.id, trains)
        return statistics(client)

    aggregator.aggregate = aggregate  # type: ignore[method-assign]
    aggregator.task_statistics = task_statistics  # type: ignore[method-assign]
