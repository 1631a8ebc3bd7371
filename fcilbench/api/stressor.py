"""Stressors: faults and attacks of clients. Each hook gets a random stream keyed by client, task and round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from fcilbench.api.schedule import Indices, Task
from fcilbench.errors import UsageError
from fcilbench.spec import params as _params
from fcilbench.spec.plugin import Plugin

Upload = dict[str, torch.Tensor]
"""What a client sends: if it trains, its update as `delta` `[d]` (the pieces that travel, one after another) and
integer buffers as `counters`; and its statistics by name."""


@dataclass(frozen=True)
class Turn:
    """When something happens.

    Attributes:
        task: The task that is trained.
        tasks: Number of tasks of the stream.
        round: Round within the task, from 0; `rounds` when the task has ended and clients send their task statistics.
        rounds: Number of rounds of the task.
        affected: Ids of all clients that misbehave, in ascending order, whether they take part in this round or not.
        random: Makes the stream of one client in this round or, of `None`, one that all affected clients share.
    """

    task: Task
    tasks: int
    round: int
    rounds: int
    affected: tuple[int, ...]
    random: Callable[[int | None], np.random.Generator]


class Stressor(Plugin):
    """Base of all stressors; without any fault itself.

    A stressor is a function of its arguments: it keeps nothing on `self`, and changes nothing that it is given. What it
    cannot touch it declines: a cell in which no upload of an affected client has anything that `touches` names, no
    straggler has work to leave out, or no stale client has an older model is `skipped` with that reason, because its
    numbers are those of the clean cell.

    Attributes:
        neutral: Hyperparameters with which the stressor does nothing, if there are such; the kit tries them.
    """

    neutral: ClassVar[Mapping[str, Any]] = {}

    def affected(self, clients: int, random: np.random.Generator) -> Sequence[int]:
        """Returns the ids of the clients that misbehave, drawn once for the whole experiment."""
        return ()

    def labels(self, labels: Indices, task: Task, random: np.random.Generator) -> Indices:
        """Returns the labels that an affected client trains on in a task."""
        return labels

    def share(self, turn: Turn, random: np.random.Generator) -> float:
        """Returns the share of its work that an affected client finishes, above 0 and up to 1.

        It stops after that share of its local steps, and its statistics cover that share of its samples.
        """
        return 1.0

    def behind(self) -> int:
        """Returns how many global models an affected client is behind; 0 is the present one. A round makes one."""
        return 0

    def upload(self, message: Upload, random: np.random.Generator) -> Upload | None:
        """Returns what an affected client really sends at the end of a round or of a task, `None` for no answer.

        `message` is what it would send, before the method's `encode`. Names, shapes and types stay.
        """
        return message

    def uploads(self, messages: Mapping[int, Upload], turn: Turn) -> Mapping[int, Upload | None]:
        """Returns what all affected clients of a round really send, by client id; by default `upload` of each.

        Override it for an attack that begins late (`turn.task`), or in which clients collude: each of them may know
        what the others would send. All affected clients of the round are among the keys, and stay so.
        """
        return {client: self.upload(message, turn.random(client)) for client, message in messages.items()}

    def touches(self, name: str, tensor: torch.Tensor) -> bool:
        """Returns whether `upload` or `uploads` can change this tensor of an upload; by default only floats.

        Where most of the numbers that the affected clients upload in a task cannot be touched, as with votes in int8,
        the cell is declined.
        """
        return tensor.is_floating_point()


class SomeClients(Stressor):
    """Base of stressors that affect a number of clients, the same ones in every round.

    The same clients are affected under every such stressor, and those of a low severity are among those of a higher
    one, because the seeds draw one order of the clients and each stressor takes the first of them.
    """

    class Params(_params.Params):
        """How many clients are affected."""

        clients: int = _params.Field(1, ge=1, description="number of affected clients, at most all of the federation's")

    def affected(self, clients: int, random: np.random.Generator) -> Sequence[int]:
        """Draws the affected clients.

        Raises:
            UsageError: If the federation has too few clients.
        """
        count = self.params.clients
        if count > clients:
            raise UsageError(
                f"stress: {count} affected clients, but protocol.clients is {clients}",
                hint=f"lower the stressor's `clients` to {clients} or fewer",
            )
        return [int(client) for client in random.permutation(clients)[:count]]
