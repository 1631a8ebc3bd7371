"""The server: the global vector, the method's state, its diagnostics and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from typing_extensions import override

from fcilbench.api import ImageInput, Layout, Protocol, Server, State, Task
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.precision import all_finite
from fcilbench.escape import line
from fcilbench.federation.tasks import stream


class FederationServer(Server):
    """The server as its method sees it.

    It begins with copies of the state vector `[D]` and the integer buffers `[K]`. `tasks` are all tasks of the stream,
    `seed` is the train seed.
    """

    def __init__(
        self,
        vector: torch.Tensor,
        counters: torch.Tensor,
        layout: Layout,
        tasks: Sequence[Task],
        *,
        protocol: Protocol | None = None,
        seed: int = 0,
        model: FlatModel | None = None,
        image_input: ImageInput | None = None,
    ) -> None:
        self.vector, self.counters, self.layout = vector.clone(), counters.clone(), layout
        self.state: State = {}
        self.round = 0
        self.logs: dict[str, float] = {}
        self.warnings: list[str] = []
        self.protocol, self.image_input = protocol or Protocol(), image_input
        self.clients = self.protocol.clients
        self._seed, self._model = seed, cast("FlatModel", model)  # tests of a server half have no network
        self._stream = tuple(tasks)
        self.task = self._stream[0]
        self.tasks: Sequence[Task] = self._stream[:1]

    def enter(self, task: Task, after: int) -> None:
        """Enters a phase that trains `task`, after which the tasks up to `after` have been seen."""
        if self._model is not None:
            self._model.task = task
        self.task, self.tasks = task, self._stream[: after + 1]

    @property
    @override
    def last_task(self) -> bool:
        return len(self.tasks) == len(self._stream)

    @property
    @override
    def network(self) -> Network:
        return self.net.network

    @property
    @override
    def net(self) -> FlatModel:
        self._model.load(self.vector, self.counters)
        self._model.network.eval()
        return self._model

    @override
    def frozen(self, name: str) -> torch.Tensor:
        return self._model.network.get_parameter(name).detach()

    @override
    def step(self, direction: torch.Tensor, part: slice | None = None) -> None:
        target = self.vector if part is None else self.vector[part]
        if direction.shape != target.shape:
            wanted = f"[D] = {list(target.shape)}" if part is None else f"the part's length {list(target.shape)}"
            raise ValueError(f"server.step expects shape {wanted}, got {list(direction.shape)}")
        if not all_finite(direction):
            raise ValueError("the aggregator's step has values that are not finite; the global model is unchanged")
        target.add_(direction.detach())

    def random(self, purpose: str) -> np.random.Generator:
        """Returns the stream keyed by (train seed, purpose, last task seen, round)."""
        return stream(self._seed, "server", purpose, self.tasks[-1].index, self.round)

    @override
    def log(self, name: str, value: float) -> None:
        self.logs[name] = float(value)

    @override
    def warn(self, message: str) -> None:
        message = line(message)  # of a row, which boards print
        if message not in self.warnings:
            self.warnings.append(message)


def tree_nbytes(tree: Any) -> int:
    """Returns the bytes of all tensors in nested dicts, lists and tuples."""
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return sum(tree_nbytes(value) for value in values)
