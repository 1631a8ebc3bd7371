"""One communication round, and the collection of statistics at the end of a task.

A round: sample clients; send each the global model and the method's broadcasts; train locally; collect uploads; merge.
Everything that passes between server and clients goes through the channel, which counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from fcilbench.api import Aggregator, Layout, Message, Piece, Updates, Wire
from fcilbench.engine import spill
from fcilbench.engine.meters import Stopwatch
from fcilbench.engine.minibatches import Drawn, Extra, Work
from fcilbench.engine.model import FlatModel
from fcilbench.engine.precision import all_finite
from fcilbench.engine.trainer import Objective
from fcilbench.errors import PluginError
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import Federation, RoundContext
from fcilbench.federation.tasks import seed_torch, stream

RESERVED = ("delta", "counters")
"""Names of an update's tensors in a message; no statistic may have them."""


@dataclass(frozen=True)
class Upload:
    """What arrived from one client beside its row of updates; the loss is `None` if it does not train.

    It is `sound` if the update and all statistics are finite: only then is it merged.
    """

    samples: int
    statistics: Message
    counters: torch.Tensor
    loss: torch.Tensor | None
    sound: bool


@dataclass(frozen=True)
class RoundResult:
    """What came of a round beside the new global model.

    Attributes:
        loss: Sample-weighted mean of the clients' last local losses; `None` if nobody trained.
        visited: Number of clients that took part.
        merged: Number of updates that were merged.
        not_finite: What of all that clients sent was not finite first, e.g. `the loss of client 0 in task 1, round 1`.
    """

    loss: float | None = None
    visited: int = 0
    merged: int = 0
    not_finite: str = ""


def run_round(federation: Federation, context: RoundContext, rows: torch.Tensor, watch: Stopwatch) -> RoundResult:
    """Runs one round; the new global vector is on the server.

    The clients' updates are written to `rows` `[N, D]`, which every round uses again; `watch` gets the seconds of
    `training` and `aggregation`.
    """
    server, channel, aggregator = federation.server, federation.channel, federation.experiment.aggregator
    server.round, server.logs = context.round, {}
    clients = sample_clients(federation, context)
    if not clients:
        server.warn(f"task {context.phase.task.index + 1}: no client of a round had samples; the model was kept")
        return RoundResult()
    wire = aggregator.wire(server)
    for pattern in (*wire.train, *wire.up):
        if not server.layout.select([pattern]):
            names = ", ".join(piece.name for piece in server.layout.pieces[:3])
            raise ValueError(f"wire: the pattern {pattern!r} matches no tensor of the state vector ({names}, ...)")
    channel.publish(server.vector, server.counters)
    broadcast = channel.post(aggregator.broadcast(server))
    replay = channel.post({} if federation.replay is None else federation.replay.message)
    uploads: dict[int, Upload] = {}
    with watch("training"):
        for row, client in zip(rows, clients, strict=False):
            channel.down(client, replay, model=False)
            session = ClientSession(federation, context, client, channel.down(client, broadcast, aggregator.trains))
            work = (row, wire) if aggregator.trains else None
            if (upload := visit(federation, context, session, aggregator.statistics, work, begins=True)) is not None:
                uploads[client] = upload
    with watch("aggregation"):
        updates, not_finite = collect(federation, clients, uploads, rows)
        if updates is not None:
            server.counters.copy_(torch.stack([uploads[client].counters for client in updates.clients]).amax(dim=0))
            aggregator.aggregate(updates, server)
    channel.publish(server.vector, server.counters)
    merged = 0 if updates is None else len(updates.clients)
    return RoundResult(_mean_loss(uploads.values()), len(clients), merged, not_finite)


def _mean_loss(uploads: Collection[Upload]) -> float | None:
    losses = [upload.loss.double().cpu() for upload in uploads if upload.loss is not None]
    if not losses:
        return None
    weights = torch.tensor([upload.samples for upload in uploads], dtype=torch.float64)
    return float((torch.stack(losses) * weights).sum() / weights.sum())


def sample_clients(federation: Federation, context: RoundContext) -> list[int]:
    """Returns the ids of the clients that take part in a round, in ascending order.

    `round(participation * N)` clients (at least one) are drawn by (train seed, task, round); those without samples
    of the task are left out.
    """
    registered = len(context.phase.clients)
    count = context.phase.sampled(federation.experiment.protocol.participation)
    random = stream(federation.experiment.seeds.of("train"), "participation", *context.key)
    drawn = random.choice(registered, size=count, replace=False) if count < registered else range(registered)
    return sorted(int(client) for client in drawn if len(context.phase.clients[client]) > 0)


def uploaded(wire: Wire, layout: Layout) -> list[Piece]:
    """Returns the pieces whose update a client uploads: of those that `up` names the trained ones and float buffers."""
    trained = set(layout.select(wire.train))
    return [piece for piece in layout.select(wire.up) if piece in trained or piece.start >= layout.buffers.start]


def visit(
    federation: Federation,
    context: RoundContext,
    session: ClientSession,
    hook: Callable[[ClientSession], Message],
    work: tuple[torch.Tensor, Wire] | None = None,
    *,
    begins: bool = False,
) -> Upload | None:
    """Trains one client if there is `work`, calls `hook` for its statistics, and uploads both.

    `work` is the row `[D]` into which the client's update is written, and the wire; `begins` says that the client
    begins the task if it has not. Returns what arrives at the server, or `None` if the client does not answer. If an
    upload is not merged, the client's state and memory are rolled back, so it sends that again.
    """
    server, model, samples = federation.server, federation.model, session.samples
    before, method = session.record.copy(), federation.experiment.aggregator
    model.load(session.received_model, server.counters)
    if begins and session.record.begun != context.phase.after:
        session.record.begun = context.phase.after
        model.network.eval()
        with torch.no_grad():
            method.begin_client_task(session)
    message: dict[str, torch.Tensor] = {}
    pieces: list[Piece] = []
    loss = None
    if work is not None:
        row, wire = work
        loss = _train(federation, context, session, wire)
        _finish(method.finish, session, model)
        pieces = uploaded(wire, server.layout)
        torch.sub(model.vector, session.received_model, out=row)
        for piece in set(server.layout.pieces) - set(pieces):
            row[piece.span] = 0.0
        message = {"delta": row, "counters": model.read_counters()}
    model.network.eval()
    session.cut_short()
    with torch.no_grad():
        statistics = hook(session)
    if any(name in statistics for name in RESERVED):
        raise ValueError(f"statistics may not be called {' or '.join(RESERVED)}: the update has these names")
    random = partial(session.random, "stress-upload")
    arrived = federation.channel.up(session.id, {**message, **statistics}, random, pieces)
    sound = arrived is not None and _finite(arrived)
    if sound:
        session.record.settle(federation.train)
    else:
        session.record.roll_back(before)
    if arrived is None:
        return None
    if work is not None:
        work[0].copy_(arrived.pop("delta"))
    counters = arrived.pop("counters", server.counters)
    return Upload(samples, {name: spill.kept(value) for name, value in arrived.items()}, counters, loss, sound)


def _finish(hook: Callable[[ClientSession], torch.Tensor | None], session: ClientSession, model: FlatModel) -> None:
    """Lets the method change what the client has trained."""
    model.network.eval()
    vector = hook(session)
    if vector is None:
        return
    if vector.shape != model.vector.shape:
        raise PluginError(f"finish: expected a vector [D] = {list(model.vector.shape)}, got {list(vector.shape)}")
    model.vector.copy_(vector.detach())


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


def collect(
    federation: Federation, clients: Sequence[int], uploads: dict[int, Upload], rows: torch.Tensor
) -> tuple[Updates | None, str]:
    """Stacks the finite updates in client-id order; a client that did not answer, or sent NaN, is left out.

    Returns also what was first not finite, or "".
    """
    server, not_finite = federation.server, ""
    answered = [row for row, client in enumerate(clients) if client in uploads]
    sound = [row for row in answered if uploads[clients[row]].sound]
    if len(answered) < len(clients):
        server.log("clients/no_answer", len(clients) - len(answered))
    if len(sound) < len(answered):
        server.log("clients/not_finite", len(answered) - len(sound))
        row = next(row for row in answered if row not in sound)
        what = _not_finite(uploads[clients[row]], rows[row])
        not_finite = f"the {what} of client {clients[row]} in task {server.task.index + 1}, round {server.round + 1}"
        server.warn(f"task {server.task.index + 1}: updates that were not finite were left out of the merge")
    if not sound:
        server.warn(f"task {server.task.index + 1}: no client sent a finite update; the global model was kept")
        return None, not_finite
    for target, row in enumerate(sound):
        if target != row and federation.experiment.aggregator.trains:
            rows[target].copy_(rows[row])  # within the buffer: a copy of all rows might not fit
    kept = tuple(clients[row] for row in sound)
    updates = Updates(
        delta=rows[: len(sound)],
        samples=tuple(uploads[client].samples for client in kept),
        clients=kept,
        statistics=tuple(uploads[client].statistics for client in kept),
        layout=server.layout,
    )
    return updates, not_finite


def _not_finite(upload: Upload, row: torch.Tensor) -> str:
    if upload.loss is not None and not all_finite(upload.loss):
        return "loss"
    return "statistics" if all_finite(row) else "update"


def collect_task_statistics(federation: Federation, context: RoundContext) -> dict[int, Message]:
    """Sends the final global model of a task to every client with data and collects its statistics at it."""
    server, channel, aggregator = federation.server, federation.channel, federation.experiment.aggregator
    arrived: dict[int, Upload] = {}
    channel.publish(server.vector, server.counters)
    for client, own in enumerate(context.phase.clients):
        if len(own) > 0:
            session = ClientSession(federation, context, client, channel.down(client, {}, aggregator.trains))
            if (upload := visit(federation, context, session, aggregator.task_statistics)) is not None:
                arrived[client] = upload
    sound = {client: upload.statistics for client, upload in arrived.items() if upload.sound}
    if len(sound) < len(arrived):
        server.warn(f"task {server.task.index + 1}: task statistics that were not finite were left out")
    return sound


def _finite(message: Message) -> bool:
    return all(all_finite(tensor) for tensor in message.values())


def update_rows(federation: Federation) -> torch.Tensor:
    """Returns a buffer `[N, D]` for the updates of any round, spilled if it does not fit.

    If nobody trains, it is zeros that take no memory.
    """
    phases, share = federation.schedule.phases, federation.experiment.protocol.participation
    needed = max(min(phase.sampled(share), sum(len(own) > 0 for own in phase.clients)) for phase in phases)
    vector = federation.server.vector
    if not federation.experiment.aggregator.trains:
        return vector.new_zeros(1, 1).expand(needed, len(vector))
    return spill.empty((needed, len(vector)), vector)
