"""One communication round, and the collection of statistics at the end of a task.

A round: sample clients; send each the global model and the method's broadcasts; train locally; collect uploads; merge.
Everything that passes between server and clients goes through the channel, which counts it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from fcilbench.api import Aggregator, Message, Updates
from fcilbench.engine import spill
from fcilbench.engine.meters import Stopwatch
from fcilbench.engine.precision import all_finite
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import Federation, RoundContext
from fcilbench.federation.tasks import stream
from fcilbench.federation.visit import Visit, visit, visit_at_task_end


@dataclass(frozen=True)
class Upload:
    """What arrived from one client beside its row of updates; the loss is `None` if it does not train.

    `fault` says what of it is not finite, the `update` or the `statistics`: it is merged only if nothing is.
    """

    samples: int
    statistics: Message
    counters: torch.Tensor
    loss: torch.Tensor | None
    fault: str


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
    server.round = context.round
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
    if aggregator.trains and not context.phase.epochs:
        server.log("clients/trained", 0)  # says why the round has no loss
    with watch("training"):
        work = (
            visit(federation, context, _session(federation, context, client, broadcast, replay), row, wire)
            for row, client in zip(rows, clients, strict=False)
        )
        uploads = gather(federation, context, work)
    with watch("aggregation"):
        updates, not_finite = collect(federation, clients, uploads, rows)
        if updates is not None:
            server.counters.copy_(torch.stack([uploads[client].counters for client in updates.clients]).amax(dim=0))
            aggregator.aggregate(updates, server)
    channel.publish(server.vector, server.counters)
    merged = 0 if updates is None else len(updates.clients)
    return RoundResult(_mean_loss(uploads.values()), len(clients), merged, not_finite)


def _mean_loss(uploads: Collection[Upload]) -> float | None:
    """Returns the mean of the clients' losses, weighted by samples; `None` if no client has a finite one."""
    pairs = [(float(upload.loss), upload.samples) for upload in uploads if upload.loss is not None]
    finite = [(loss, samples) for loss, samples in pairs if math.isfinite(loss)]
    if not finite:
        return None
    losses, weights = torch.tensor(finite, dtype=torch.float64).T
    return float((losses * weights).sum() / weights.sum())


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


def _session(
    federation: Federation, context: RoundContext, client: int, broadcast: Message, replay: Message
) -> ClientSession:
    """Sends a client what it needs for a round."""
    channel, trains = federation.channel, federation.experiment.aggregator.trains
    channel.down(client, replay, model=False)
    return ClientSession(federation, context, client, channel.down(client, broadcast, trains))


def gather(federation: Federation, context: RoundContext, visits: Iterable[Visit]) -> dict[int, Upload]:
    """Delivers what clients send, and returns what arrives by client id, in the order of the visits.

    Clients that misbehave send last: they may know of each other.
    """
    stress, order, waiting = federation.channel.stress, list[int](), dict[int, Visit]()
    arrived: dict[int, Upload] = {}
    for one in visits:
        order.append(one.session.id)
        if one.session.id in stress.affected:
            waiting[one.session.id] = one
        else:
            arrived[one.session.id] = deliver(federation, one)
    if waiting:
        sent = stress.uploads({client: one.message for client, one in waiting.items()}, federation.turn(context))
        for client, one in waiting.items():
            if (changed := sent[client]) is None:
                one.roll_back()
            else:
                arrived[client] = deliver(federation, one.changed(changed))
    return {client: arrived[client] for client in order if client in arrived}


@torch.no_grad()
def deliver(federation: Federation, visit: Visit) -> Upload:
    """Encodes what a client sends, counts it, and decodes it; the update is written to its row.

    If an upload is not merged, the client's state and memory are rolled back, so it sends that again.
    """
    method, server, channel, fault = federation.experiment.aggregator, federation.server, federation.channel, ""
    if visit.row is not None:
        update, session = visit.update, visit.session
        if type(method).encode is not Aggregator.encode:
            federation.model.load(session.received_model, server.counters)
            federation.model.network.eval()
            fault = "" if _finite(update) else "update"  # whole numbers cannot say that it was not
        message = channel.up(method.encode(update, session))
        _write(method.decode(message, server), visit)
        channel.up({"counters": visit.counters})
        fault = fault or ("" if all_finite(visit.row) else "update")
    statistics = channel.up(visit.statistics)
    fault = fault or ("" if _finite(statistics) else "statistics")
    if fault:
        visit.roll_back()
    else:
        visit.session.record.settle(federation.train)
    kept = {name: spill.kept(value) for name, value in statistics.items()}
    counters = server.counters if visit.row is None else visit.counters
    return Upload(visit.samples, kept, counters, visit.loss, fault)


def _write(decoded: Message, visit: Visit) -> None:
    """Writes a decoded update to the client's row.

    Raises:
        ValueError: If it has not the names and shapes of the update.
    """
    for name in decoded.keys() | visit.update.keys():
        sent, got = visit.update.get(name), decoded.get(name)
        if sent is None or got is None or sent.shape != got.shape or not got.is_floating_point():
            wanted = "nothing" if sent is None else f"floats {list(sent.shape)}"
            found = "nothing" if got is None else f"{got.dtype} {list(got.shape)}"
            raise ValueError(f"decode returned {found} for {name!r}; the update has {wanted}")
        if got is not sent:
            sent.copy_(got)


def collect(
    federation: Federation, clients: Sequence[int], uploads: dict[int, Upload], rows: torch.Tensor
) -> tuple[Updates | None, str]:
    """Stacks the finite updates in client-id order; a client that did not answer, or sent NaN, is left out.

    Returns also what was first not finite, or "".
    """
    server, not_finite = federation.server, ""
    answered = [row for row, client in enumerate(clients) if client in uploads]
    sound = [row for row in answered if not uploads[clients[row]].fault]
    if len(answered) < len(clients):
        server.log("clients/no_answer", len(clients) - len(answered))
    if len(sound) < len(answered):
        server.log("clients/not_finite", len(answered) - len(sound))
        row = next(row for row in answered if row not in sound)
        what = _not_finite(uploads[clients[row]])
        not_finite = f"the {what} of client {clients[row]} in task {server.task.index + 1}, round {server.round + 1}"
        server.warn(f"task {server.task.index + 1}: updates that were not finite were left out of the merge")
    if not sound:
        none = "no client sent a finite update" if answered else "no client answered"
        server.warn(f"task {server.task.index + 1}: in a round {none}; the model was kept")
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


def _not_finite(upload: Upload) -> str:
    return "loss" if upload.loss is not None and not all_finite(upload.loss) else upload.fault


def collect_task_statistics(federation: Federation, context: RoundContext) -> dict[int, Message]:
    """Sends the final global model of a task to every client with data and collects its statistics at it."""
    server, channel, aggregator = federation.server, federation.channel, federation.experiment.aggregator
    channel.publish(server.vector, server.counters)
    holders = [client for client, own in enumerate(context.phase.clients) if len(own) > 0]
    sessions = (
        ClientSession(federation, context, client, channel.down(client, {}, aggregator.trains)) for client in holders
    )
    arrived = gather(federation, context, (visit_at_task_end(federation, session) for session in sessions))
    sound = {client: upload.statistics for client, upload in arrived.items() if not upload.fault}
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
