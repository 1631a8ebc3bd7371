"""The clients' half of a round: each trains from the global vector, writes its update and is asked for statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fcilbench.api.message import Message
from fcilbench.engine.stacked import StackError
from fcilbench.engine.training import Objective, Work
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import Federation
from fcilbench.federation.streams import seed_torch
from fcilbench.federation.turn import Turn


@dataclass(frozen=True)
class Upload:
    """What one client sent beside its row of the update matrix: its statistics, its counters, its last local loss."""

    client: int
    samples: int
    statistics: Message
    counters: torch.Tensor
    loss: torch.Tensor | None


def execution_order(clients: Sequence[int]) -> Sequence[int]:
    """Returns the order in which clients are simulated; results do not depend on it."""
    return clients


def visit(
    federation: Federation, turn: Turn, clients: Sequence[int], received: Message, rows: torch.Tensor
) -> dict[int, Upload]:
    """Simulates the clients of a round, in stacks if the runtime asks for them, else one by one.

    Args:
        federation: The federation.
        turn: The current turn.
        clients: Ids of those who take part, ascending.
        received: The method's broadcasts to them.
        rows: `[N, D]`; row i gets the update of `clients[i]`.

    Returns:
        Their uploads by id.
    """
    sessions = {client: ClientSession(federation, turn, client, received) for client in clients}
    target = {client: rows[i] for i, client in enumerate(clients)}
    uploads: dict[int, Upload] = {}
    stack = federation.stack
    if stack is not None and federation.experiment.aggregator.trains:
        # Clients with as many steps as each other go together; the composition depends on the data alone.
        alike = sorted(clients, key=lambda client: -sessions[client].samples)
        for start in range(0, len(alike), stack.size):
            group = alike[start : start + stack.size]
            if len(group) > 1:
                uploads |= _together(federation, turn, [sessions[client] for client in group], target)
    for client in execution_order([client for client in clients if client not in uploads]):
        uploads[client] = _alone(federation, turn, sessions[client], target[client])
    return uploads


def _alone(federation: Federation, turn: Turn, session: ClientSession, row: torch.Tensor) -> Upload:
    federation.model.load(federation.server.vector, federation.server.counters)
    if not federation.experiment.aggregator.trains:
        return _upload(federation, session, None)
    seed_torch(federation.experiment.seeds.of("train"), "local", *turn.key, session.id)
    loss = federation.trainer.train(_objective(federation, session), _work(turn, session), session.random("batches"))
    for note in federation.trainer.notes:
        federation.server.warn(note)
    _write(federation, session, row)
    return _upload(federation, session, loss)


def _together(
    federation: Federation, turn: Turn, sessions: Sequence[ClientSession], target: dict[int, torch.Tensor]
) -> dict[int, Upload]:
    """Trains a stack of clients; returns nothing, with a warning, where they have to be trained one by one."""
    stack, server = federation.stack, federation.server
    assert stack is not None
    try:
        losses = stack.train(
            server.vector,
            [_objective(federation, session) for session in sessions],
            [_work(turn, session) for session in sessions],
            [session.random("batches") for session in sessions],
        )
    except StackError as error:
        server.warn(f"clients are not stacked: {error}")
        return {}
    for note in stack.notes:
        server.warn(note)
    uploads = {}
    for session, vector, loss in zip(sessions, stack.vectors, losses, strict=False):
        federation.model.load(vector, server.counters)
        _write(federation, session, target[session.id])
        uploads[session.id] = _upload(federation, session, loss)
    return uploads


def _objective(federation: Federation, session: ClientSession) -> Objective:
    method = federation.experiment.aggregator
    own = {f"state/{name}": value for name, value in session.state.items()}
    return Objective(method.loss, method.gradient, {**session.received, **own})


def _work(turn: Turn, session: ClientSession) -> Work:
    return Work(session.index, turn.phase.task, turn.phase.epochs, turn.phase.batch_size)


def _write(federation: Federation, session: ClientSession, row: torch.Tensor) -> None:
    """Writes the update of the client whose model is loaded into its row."""
    torch.sub(federation.model.vector, federation.server.vector, out=row)
    if session.id in federation.affected:
        row.copy_(federation.experiment.stressor.upload(row, session.random("stress-upload")))


def _upload(federation: Federation, session: ClientSession, loss: torch.Tensor | None) -> Upload:
    """Asks the client whose model is loaded for its statistics."""
    model = federation.model
    model.network.eval()
    with torch.no_grad():
        statistics = federation.experiment.aggregator.statistics(session)
    return Upload(session.id, session.samples, statistics, model.read_counters(), loss)
