"""One communication round: sample clients, broadcast, train locally, collect, aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fcilbench.api.message import Message, nbytes
from fcilbench.api.server import Updates
from fcilbench.engine.finite import all_finite
from fcilbench.engine.meters import Stopwatch
from fcilbench.federation.experiment import Federation
from fcilbench.federation.streams import stream
from fcilbench.federation.turn import Turn
from fcilbench.federation.visit import Upload, visit


@dataclass
class Traffic:
    """Bytes that crossed the network, counted from the messages.

    Attributes:
        up: All clients' uploads.
        down: All broadcasts, once per client that receives them.
        held: Version of the global model that each client holds; it is not sent that version again.
        briefed: Last task whose task broadcast each client has received.
        start: Version of the global model with which the current task began.
    """

    up: int = 0
    down: int = 0
    held: dict[int, int] = field(default_factory=dict)
    briefed: dict[int, int] = field(default_factory=dict)
    start: int = 0


def sample_clients(federation: Federation, turn: Turn) -> list[int]:
    """Returns the ids of the clients with data that take part in a round, in ascending order.

    `round(participation * N)` clients (at least one) are drawn by (train seed, task, round); those without samples
    of the task neither train nor send anything.
    """
    registered = len(turn.phase.clients)
    count = turn.phase.sampled(federation.experiment.protocol.participation)
    random = stream(federation.experiment.seeds.of("train"), "participation", *turn.key)
    drawn = random.choice(registered, size=count, replace=False) if count < registered else range(registered)
    return sorted(int(client) for client in drawn if len(turn.phase.clients[client]) > 0)


def update_rows(federation: Federation) -> torch.Tensor:
    """Returns a buffer `[N, D]` for the updates of any round; zeros without memory of their own if nobody trains."""
    taking_part = max(p.sampled(federation.experiment.protocol.participation) for p in federation.schedule.phases)
    theta = federation.server.vector
    if not federation.experiment.aggregator.trains:
        return theta.new_zeros(1, 1).expand(taking_part, len(theta))
    return theta.new_empty(taking_part, len(theta))


def run_round(
    federation: Federation,
    turn: Turn,
    rows: torch.Tensor,
    watch: Stopwatch,
    traffic: Traffic,
) -> float | None:
    """Runs one round and leaves the new global vector on the server.

    Args:
        federation: The federation.
        turn: The current phase and round.
        rows: Buffer `[N, D]` for the clients' updates, reused by every round.
        watch: Gets the seconds of `training` and `aggregation`.
        traffic: Gets the bytes.

    Returns:
        Sample-weighted mean of the clients' last local losses, or `None` if nobody had data.
    """
    server, aggregator = federation.server, federation.experiment.aggregator
    server.round, server.logs = turn.round, {}
    clients = sample_clients(federation, turn)
    if not clients:
        server.warn(f"task {turn.phase.task.index}: a round had no client with samples; the global model was kept")
        return None
    briefing, extra = aggregator.task_broadcast(server), aggregator.broadcast(server)
    for client in clients:
        _receive(federation, turn, client, (briefing, extra), traffic)
    with watch("training"):
        uploads = visit(federation, turn, clients, {**briefing, **extra}, rows)
    for upload in uploads.values():
        _send(federation, upload, traffic)
    with watch("aggregation"):
        updates = _collect(federation, clients, uploads, rows)
        if updates is not None:
            server.counters.copy_(uploads[updates.clients[0]].counters)
            aggregator.aggregate(updates, server)
    return _mean_loss([uploads[client] for client in clients])


def _mean_loss(uploads: Sequence[Upload]) -> float | None:
    losses = [upload.loss.double().cpu() for upload in uploads if upload.loss is not None]
    if not losses:
        return None
    weights = torch.tensor([upload.samples for upload in uploads], dtype=torch.float64)
    return float((torch.stack(losses) * weights).sum() / weights.sum())


def receive_model(federation: Federation, client: int, traffic: Traffic) -> None:
    """Counts the global model as sent to a client: the parts that changed since the version that it holds.

    Clients of a training-free method receive the initial model and need no other.
    """
    server = federation.server
    held = traffic.held.get(client)
    if federation.schedule.federated and (held is None or federation.experiment.aggregator.trains):
        traffic.down += nbytes(server.news(held))
        traffic.held[client] = server.version


def _receive(
    federation: Federation, turn: Turn, client: int, messages: tuple[Message, Message], traffic: Traffic
) -> None:
    """Counts the global model and the method's own broadcasts: the task's once, the round's each time.

    A model in the task's broadcast that the client holds, or is being sent as the global one, is not sent again.
    """
    briefing, extra = messages
    held = traffic.start in (traffic.held.get(client), federation.server.version)
    receive_model(federation, client, traffic)
    if federation.schedule.federated:
        first = traffic.briefed.get(client) != turn.phase.after
        kept = federation.experiment.aggregator.held_model if held else None
        news = {name: tensor for name, tensor in briefing.items() if name != kept}
        traffic.down += nbytes(extra) + (nbytes(news) if first else 0)
        traffic.briefed[client] = turn.phase.after


def _send(federation: Federation, upload: Upload, traffic: Traffic) -> None:
    if federation.schedule.federated:
        model = {"delta": federation.server.vector, "counters": upload.counters}
        traffic.up += nbytes(upload.statistics) + (nbytes(model) if federation.experiment.aggregator.trains else 0)


def _collect(
    federation: Federation, clients: list[int], uploads: dict[int, Upload], rows: torch.Tensor
) -> Updates | None:
    """Stacks the finite updates in client-id order; a client that sent NaN or infinity is left out, with a warning."""
    server = federation.server
    sound = [row for row, client in enumerate(clients) if finite({"delta": rows[row], **uploads[client].statistics})]
    excluded = len(clients) - len(sound)
    if excluded:
        server.log("clients/not_finite", excluded)
        server.warn(f"task {server.task.index}: updates that were not finite were left out of the merge")
    if not sound:
        server.warn(f"task {server.task.index}: no client sent a finite update; the global model was kept")
        return None
    kept = [uploads[clients[row]] for row in sound]
    return Updates(
        delta=rows[: len(clients)] if not excluded else rows[sound],
        samples=tuple(upload.samples for upload in kept),
        clients=tuple(upload.client for upload in kept),
        statistics=tuple(upload.statistics for upload in kept),
        layout=server.layout,
    )


def finite(message: Message) -> bool:
    """Says whether every value of a message is finite."""
    return all(all_finite(tensor) for tensor in message.values())
