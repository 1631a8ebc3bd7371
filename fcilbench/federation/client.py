"""A client as its method sees it: the resident model, its own samples, its own state and random streams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fcilbench.api.client import Batch
from fcilbench.api.task import Task
from fcilbench.engine.flat import FlatModel
from fcilbench.federation.experiment import Federation
from fcilbench.federation.streams import stream
from fcilbench.federation.turn import Turn


class ClientSession:
    """One client in one turn; implements `fcilbench.api.client.Client`.

    Args:
        federation: Where the data and the model are; the session shows its method nothing else of it.
        turn: The current turn.
        client: Registered client id.

    Attributes:
        index: Positions of the client's samples, int64 `[n]` on the device.
    """

    def __init__(self, federation: Federation, turn: Turn, client: int) -> None:
        own = turn.phase.clients[client]
        self.id = client
        self.samples = len(own)
        self.task: Task = turn.phase.task
        self.state = federation.clients.setdefault(client, {})
        self.index = torch.from_numpy(own).to(federation.train.labels.device)
        self._federation, self._turn = federation, turn

    @property
    def net(self) -> FlatModel:
        """The resident model."""
        return self._federation.model

    @property
    def feature_dim(self) -> int:
        """Number of features F."""
        return self._federation.model.parts.features

    def batches(self) -> Iterator[Batch]:
        """Iterates once over the client's samples with the test transform."""
        data = self._federation.train
        for rows in torch.split(self.index, self._federation.experiment.runtime.eval_batch_size):
            mask = torch.ones(len(rows), device=rows.device)
            yield Batch(data.plain(rows), data.labels[rows], mask, self.task)

    def random(self, purpose: str) -> np.random.Generator:
        """Returns the stream keyed by (train seed, purpose, task, round, client)."""
        return stream(self._federation.experiment.seeds.of("train"), purpose, *self._turn.key, self.id)
