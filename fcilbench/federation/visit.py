"""What one client does in a round: it trains, and computes what it sends; and its statistics at the end of a task.

A `Visit` is that work before anything of it is sent: `fcilbench.federation.round` delivers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from fcilbench.api import Aggregator, Layout, Message, Piece, Wire
from fcilbench.engine.minibatches import Drawn, Extra, Work
from fcilbench.engine.model import FlatModel
from fcilbench.engine.trainer import Objective
from fcilbench.errors import PluginError
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import Federation, RoundContext
from fcilbench.federation.record import ClientRecord
from fcilbench.federation.tasks import seed_torch

RESERVED = ("delta", "counters")
"""Names of an update's tensors in a message; no statistic may have them."""


@dataclass(frozen=True)
class Visit:
    """A client that has done its work and not sent it yet.

    Attributes:
        samples: Number of its samples.
        before: Its record, of state and memory, before its work.
        row: The row `[D]` of its update; `None` if it does not train.
        update: The pieces of the row that travel, by name: views.
    """

    session: ClientSession
    samples: int
    before: ClientRecord
    row: torch.Tensor | None = None
    update: Message = field(default_factory=dict)
    counters: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    statistics: Message = field(default_factory=dict)
    loss: torch.Tensor | None = None

    @property
    def message(self) -> Message:
        """All that the client sends, as stressors see it."""
        if self.row is None:
            return self.statistics
        update = torch.cat([self.row[:0], *(tensor.reshape(-1) for tensor in self.update.values())])
        return {"delta": update, "counters": self.counters, **self.statistics}

    def changed(self, message: Message) -> Visit:
        """Returns the visit of a client that sends another `message`; the row is overwritten."""
        if self.row is None:
            return replace(self, statistics=message)
        parts = torch.split(message["delta"], [tensor.numel() for tensor in self.update.values()])
        for tensor, part in zip(self.update.values(), parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
        statistics = {name: tensor for name, tensor in message.items() if name not in RESERVED}
        return replace(self, counters=message["counters"], statistics=statistics)

    def roll_back(self) -> None:
        """Takes back what the client noted and kept during the visit."""
        self.session.record.roll_back(self.before)


def visit(
    federation: Federation, context: RoundContext, session: ClientSession, row: torch.Tensor, wire: Wire
) -> Visit:
    """Trains one client, if clients train, and takes its statistics; its update `[D]` is written to `row`."""
    server, model, aggregator = federation.server, federation.model, federation.experiment.aggregator
    before, samples = session.record.copy(), session.samples
    model.load(session.received_model, server.counters)
    if session.record.begun != context.phase.after:
        session.record.begun = context.phase.after
        model.network.eval()
        with torch.no_grad():
            aggregator.begin_client_task(session)
    if not aggregator.trains or not context.phase.epochs:
        if aggregator.trains:
            row.zero_()
        return Visit(session, samples, before, statistics=_statistics(federation, session, aggregator.statistics))
    loss = _train(federation, context, session, wire)
    _finish(aggregator.finish, session, model)
    pieces = uploaded(wire, server.layout)
    torch.sub(model.vector, session.received_model, out=row)
    for piece in set(server.layout.pieces) - set(pieces):
        row[piece.span] = 0.0
    update = {piece.name: row[piece.span].view(piece.shape) for piece in pieces}
    counters = model.read_counters()
    statistics = _statistics(federation, session, aggregator.statistics)
    return Visit(session, samples, before, row, update, counters, statistics, loss)


def visit_at_task_end(federation: Federation, session: ClientSession) -> Visit:
    """Takes one client's task statistics."""
    before, samples = session.record.copy(), session.samples
    federation.model.load(session.received_model, federation.server.counters)
    hook = federation.experiment.aggregator.task_statistics
    return Visit(session, samples, before, statistics=_statistics(federation, session, hook))


def uploaded(wire: Wire, layout: Layout) -> list[Piece]:
    """Returns the pieces whose update a client uploads: of those that `up` names the trained ones and float buffers."""
    trained = set(layout.select(wire.train))
    return [piece for piece in layout.select(wire.up) if piece in trained or piece.start >= layout.buffers.start]


def _train(federation: Federation, context: RoundContext, session: ClientSession, wire: Wire) -> torch.Tensor:
    method, phase = federation.experiment.aggregator, context.phase
    memory = _drawn(method, session, phase.batch_size)
    count = method.random_numbers(federation.server)
    numbers = (count, session.random("numbers")) if count else None
    seed_torch(federation.experiment.seeds.of("train"), "local", *context.key, session.id)
    own = {f"state/{name}": value for name, value in session.state.items() if isinstance(value, torch.Tensor)}
    objective = Objective(method.loss, method.gradient, {**session.received, **own, "received": session.received_model})
    extra = None if federation.replay is None else Extra(federation.replay.data, session.random("replay"))
    work = Work(
        *(session.index, phase.task, phase.epochs, phase.batch_size, wire.train),
        extra=extra,
        memory=memory,
        numbers=numbers,
        steps=session.steps,
    )
    if phase.until is not None:  # the rounds of such a phase are one training run
        work = replace(work, done=context.round * phase.epochs, total=phase.rounds * phase.epochs)
    loss = federation.trainer.train(objective, work, session.random("batches"))
    for note in federation.trainer.notes:
        federation.server.warn(note)
    return loss


@torch.no_grad()
def _drawn(method: Aggregator, session: ClientSession, batch_size: int) -> Drawn | None:
    """Returns what the steps of a visit draw from the client's memory; `None` for nothing."""
    session.network.eval()
    rehearsal = method.client_replay(session)
    if rehearsal is None or not len(rehearsal.memory):
        return None
    if not torch.isin(rehearsal.memory.positions, session.memory.positions).all():
        raise PluginError(f"client_replay: client {session.id} does not keep all of these samples (`client.memory`)")
    if rehearsal.draws < 1 or (rehearsal.size is not None and rehearsal.size < 1):
        raise PluginError(f"client_replay: {rehearsal.draws} draws of {rehearsal.size} samples; both are at least 1")
    randoms = tuple(session.random(f"memory-draw-{number}") for number in range(rehearsal.draws))
    return Drawn(rehearsal.memory, rehearsal.size or batch_size, randoms)


def _finish(hook: Callable[[ClientSession], torch.Tensor | None], session: ClientSession, model: FlatModel) -> None:
    """Lets the method change what the client has trained."""
    model.network.eval()
    vector = hook(session)
    if vector is None:
        return
    if vector.shape != model.vector.shape:
        raise PluginError(f"finish: expected a vector [D] = {list(model.vector.shape)}, got {list(vector.shape)}")
    model.vector.copy_(vector.detach())


def _statistics(federation: Federation, session: ClientSession, hook: Callable[[ClientSession], Message]) -> Message:
    federation.model.network.eval()
    samples, stress, trains = session.samples, federation.channel.stress, federation.experiment.aggregator.trains
    session.cut_short()
    with torch.no_grad(), federation.model.reading():
        statistics = hook(session)
    if any(name in statistics for name in RESERVED):
        raise ValueError(f"statistics may not be called {' or '.join(RESERVED)}: the update has these names")
    own, present = session.received_model, federation.server.vector
    stress.note(
        session.id,
        asked=session.share < 1,
        did=(trains and session.slowed) or (bool(statistics) and session.samples < samples),
        outdated=own is not present and not stress.outdated and not torch.equal(own, present),
    )
    return statistics
