"""One communication round, and the collection of statistics at the end of a task.

A round: sample clients; send each the global model and the method's broadcasts; train locally; collect uploads; merge.
Everything that passes between server and clients goes through the channel, which counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from fcilbench.api.message import Layout, Message, Piece, Wire
from fcilbench.api.server import Updates
from fcilbench.engine.meters import Stopwatch
from fcilbench.engine.precision import all_finite
from fcilbench.engine.trainer import Extra, Objective, Work
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import Federation, RoundContext
from fcilbench.federation.tasks import seed_torch, stream

RESERVED = ("delta", "counters")
"""Names under which an update travels; no statistic may have them."""


@dataclass(frozen=True)
class Upload:
    """What arrived from one client beside its row of updates; the loss is `None` if it does not train."""

    client: int
    samples: int
    statistics: Message
    counters: torch.Tensor
    loss: torch.Tensor | None


def run_round(federation: Federation, context: RoundContext, rows: torch.Tensor, watch: Stopwatch) -> float | None:
    """Runs one round and leaves the new global vector on the server.

    Args:
        federation: The federation.
        context: The current phase and round.
        rows: Buffer `[N, D]` for the clients' updates, reused by every round.
        watch: Gets the seconds of `training` and `aggregation`.

    Returns:
        Sample-weighted mean of the clients' last local losses, or `None` if nobody trained.
    """
    server, channel, aggregator = federation.server, federation.channel, federation.experiment.aggregator
    server.round, server.logs, federation.merged = context.round, {}, 0
    clients = sample_clients(federation, context)
    if not clients:
        server.warn(f"task {context.phase.task.index}: a round had no client with samples; the global model was kept")
        return None
    wire = checked(aggregator.wire(server), server.layout)
    channel.publish(server.vector, server.counters)
    broadcast = channel.post({**aggregator.task_broadcast(server), **aggregator.broadcast(server)})
    replay = channel.post({} if federation.replay is None else federation.replay.message)
    uploads: dict[int, Upload] = {}
    with watch("training"):
        for row, client in zip(rows, clients, strict=False):
            channel.down(client, replay, model=False)
            session = ClientSession(federation, context, client, channel.down(client, broadcast, aggregator.trains))
            work = (row, wire) if aggregator.trains else None
            upload = visit(federation, context, session, aggregator.statistics, work)
            if upload is not None:
                uploads[client] = upload
    with watch("aggregation"):
        updates = collect(federation, clients, uploads, rows)
        if updates is not None:
            federation.merged = len(updates.clients)
            server.counters.copy_(torch.stack([uploads[client].counters for client in updates.clients]).amax(dim=0))
            aggregator.aggregate(updates, server)
    channel.publish(server.vector, server.counters)
    return _mean_loss(uploads.values())


def sample_clients(federation: Federation, context: RoundContext) -> list[int]:
    """Returns the ids of the clients with data that take part in a round, in ascending order.

    `round(participation * N)` clients (at least one) are drawn by (train seed, task, round); those without samples
    of the task neither train nor send anything.
    """
    registered = len(context.phase.clients)
    count = context.phase.sampled(federation.experiment.protocol.participation)
    random = stream(federation.experiment.seeds.of("train"), "participation", *context.key)
    drawn = random.choice(registered, size=count, replace=False) if count < registered else range(registered)
    return sorted(int(client) for client in drawn if len(context.phase.clients[client]) > 0)


def checked(wire: Wire, layout: Layout) -> Wire:
    """Returns the wire, or raises `ValueError` if one of its patterns matches no piece of the state vector."""
    for pattern in (*wire.train, *wire.up):
        if not layout.select([pattern]):
            names = ", ".join(piece.name for piece in layout.pieces[:3])
            raise ValueError(f"wire: the pattern {pattern!r} matches no tensor of the state vector ({names}, ...)")
    return wire


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
) -> Upload | None:
    """Trains one client from the model that it has received if there is `work`, asks `hook`, and sends both.

    `work` is the row `[D]` into which the client's update is written, and what is trained and travels of it. The result
    is what arrives at the server, or `None` without an answer.
    """
    server, model, samples = federation.server, federation.model, session.samples
    model.load(session.received_model, server.counters)
    message: dict[str, torch.Tensor] = {}
    pieces: list[Piece] = []
    loss = None
    if work is not None:
        row, wire = work
        loss = _train(federation, context, session, wire)
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
    arrived = federation.channel.up(session.id, {**message, **statistics}, session.stress, pieces)
    if arrived is None:
        return None
    if work is not None:
        work[0].copy_(arrived.pop("delta"))
    counters = arrived.pop("counters", server.counters)
    return Upload(session.id, samples, arrived, counters, loss)


def _train(federation: Federation, context: RoundContext, session: ClientSession, wire: Wire) -> torch.Tensor:
    method, phase = federation.experiment.aggregator, context.phase
    seed_torch(federation.experiment.seeds.of("train"), "local", *context.key, session.id)
    own = {f"state/{name}": value for name, value in session.state.items()}
    objective = Objective(method.loss, method.gradient, {**session.received, **own, "received": session.received_model})
    extra = None if federation.replay is None else Extra(federation.replay.data, session.random("replay"))
    work = Work(session.index, phase.task, phase.epochs, phase.batch_size, wire.train, extra, session.steps)
    loss = federation.trainer.train(objective, work, session.random("batches"))
    for note in federation.trainer.notes:
        federation.server.warn(note)
    return loss


def collect(
    federation: Federation, clients: Sequence[int], uploads: dict[int, Upload], rows: torch.Tensor
) -> Updates | None:
    """Stacks the finite updates in client-id order; a client that did not answer, or sent NaN, is left out."""
    server = federation.server
    answered = [row for row, client in enumerate(clients) if client in uploads]
    sound = [row for row in answered if finite({"delta": rows[row], **uploads[clients[row]].statistics})]
    if len(answered) < len(clients):
        server.log("clients/no_answer", len(clients) - len(answered))
    if len(sound) < len(answered):
        server.log("clients/not_finite", len(answered) - len(sound))
        server.warn(f"task {server.task.index}: updates that were not finite were left out of the merge")
    if not sound:
        server.warn(f"task {server.task.index}: no client sent a finite update; the global model was kept")
        return None
    kept = [uploads[clients[row]] for row in sound]
    return Updates(
        delta=rows[: len(clients)] if len(sound) == len(clients) else rows[sound],
        samples=tuple(upload.samples for upload in kept),
        clients=tuple(upload.client for upload in kept),
        statistics=tuple(upload.statistics for upload in kept),
        layout=server.layout,
    )


def collect_task_statistics(federation: Federation, context: RoundContext) -> dict[int, Message]:
    """Sends the final global model of a task to every client with data and collects its statistics at it."""
    server, channel, aggregator = federation.server, federation.channel, federation.experiment.aggregator
    arrived: dict[int, Message] = {}
    channel.publish(server.vector, server.counters)
    for client, own in enumerate(context.phase.clients):
        if len(own) == 0:
            continue
        session = ClientSession(federation, context, client, channel.down(client, {}, aggregator.trains))
        upload = visit(federation, context, session, aggregator.task_statistics)
        if upload is not None:
            arrived[client] = upload.statistics
    sound = {client: message for client, message in arrived.items() if finite(message)}
    if len(sound) < len(arrived):
        server.warn(f"task {server.task.index}: task statistics that were not finite were left out")
    return sound


def _mean_loss(uploads: Collection[Upload]) -> float | None:
    losses = [upload.loss.double().cpu() for upload in uploads if upload.loss is not None]
    if not losses:
        return None
    weights = torch.tensor([upload.samples for upload in uploads], dtype=torch.float64)
    return float((torch.stack(losses) * weights).sum() / weights.sum())


def finite(message: Message) -> bool:
    """Returns whether every value of a message is finite."""
    return all(all_finite(tensor) for tensor in message.values())


def update_rows(federation: Federation) -> torch.Tensor:
    """Returns a buffer `[N, D]` for the updates of any round; zeros without memory of their own if nobody trains."""
    phases, share = federation.schedule.phases, federation.experiment.protocol.participation
    needed = max(min(phase.sampled(share), sum(len(own) > 0 for own in phase.clients)) for phase in phases)
    vector = federation.server.vector
    if not federation.experiment.aggregator.trains:
        return vector.new_zeros(1, 1).expand(needed, len(vector))
    return vector.new_empty(needed, len(vector))
