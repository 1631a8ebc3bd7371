"""The clients' half of a round: each trains from the global vector, writes its update and is asked for statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fcilbench.api.message import Message
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
    """Simulates the clients of a round, one after the other.

    Args:
        federation: The federation.
        turn: The current turn.
        clients: Ids of those who take part, ascending.
        received: The method's broadcasts to them.
        rows: `[N, D]`; row i gets the update of `clients[i]`.

    Returns:
        Their uploads by id.
    """
    target = {client: rows[i] for i, client in enumerate(clients)}
    uploads: dict[int, Upload] = {}
    for client in execution_order(clients):
        session = ClientSession(federation, turn, client, received)
        uploads[client] = _alone(federation, turn, session, target[client])
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
