"""The server: the global vector, the method's state, and what it has to tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fcilbench.api.message import Message
from fcilbench.api.server import Layout, State
from fcilbench.api.task import Task
from fcilbench.engine.finite import all_finite
from fcilbench.federation.streams import stream


class FederationServer:
    """Implements `fcilbench.api.server.Server`.

    Args:
        theta: Initial global state vector `[D]`; copied.
        counters: Initial integer buffers `[K]`; copied.
        layout: Slices of the vector.
        tasks: All tasks of the stream.
        seed: The train seed, for the method's random streams.

    Attributes:
        vector: Global state vector `[D]`.
        counters: Integer buffers, taken from the first client of a round.
        state: The method's persistent state.
        version: Rises with every change of `vector`; a client that holds it need not be sent it again.
        changed: Version at which each part of `vector` changed last.
        logs: Diagnostics of the current round.
        warnings: Everything worth a line in the row, each once.
    """

    def __init__(
        self, theta: torch.Tensor, counters: torch.Tensor, layout: Layout, tasks: Sequence[Task], seed: int = 0
    ) -> None:
        self.vector = theta.clone()
        self.counters = counters.clone()
        self.layout = layout
        self.state: State = {}
        self.version = 0
        self.changed = {"backbone": 0, "head": 0, "buffers": 0}
        self.round = 0
        self.logs: dict[str, float] = {}
        self.warnings: list[str] = []
        self._seed = seed
        self._stream = tuple(tasks)
        self.task = self._stream[0]
        self.tasks: Sequence[Task] = self._stream[:1]

    def enter(self, task: Task, after: int) -> None:
        """Moves on to a phase that trains `task`, after which the tasks up to `after` have been seen."""
        self.task = task
        self.tasks = self._stream[: after + 1]

    @property
    def last_task(self) -> bool:
        """Whether no task of the stream follows the current one."""
        return len(self.tasks) == len(self._stream)

    def step(self, direction: torch.Tensor, part: slice | None = None) -> None:
        """Adds `direction` to the global vector, or to one part of it.

        Raises:
            ValueError: If the shape does not fit, or a value is not finite.
        """
        target = self.vector if part is None else self.vector[part]
        if direction.shape != target.shape:
            raise ValueError(f"step of shape {tuple(direction.shape)} does not fit {tuple(target.shape)}")
        if not all_finite(direction):
            raise ValueError("the aggregator's step has values that are not finite; the global model is unchanged")
        target.add_(direction)
        self._touch(part or self.layout.all)

    def reset(self, theta: torch.Tensor) -> None:
        """Puts the global vector back to `vector`, bit for bit."""
        self.vector.copy_(theta)
        self._touch(self.layout.all)

    def _touch(self, part: slice) -> None:
        self.version += 1
        start, stop, _ = part.indices(len(self.vector))
        for name in self.changed:
            own: slice = getattr(self.layout, name)
            if own.start < stop and start < own.stop:
                self.changed[name] = self.version

    def news(self, held: int | None) -> Message:
        """Returns what of the global model a client must be sent: parts that changed since the version it holds.

        Args:
            held: That version; `None` if it holds nothing.
        """
        if held == self.version:
            return {}
        parts = [name for name, version in self.changed.items() if held is None or version > held]
        return {"counters": self.counters, **{name: self.vector[getattr(self.layout, name)] for name in parts}}

    def random(self, purpose: str) -> np.random.Generator:
        """Returns the stream keyed by (train seed, purpose, last task seen, round)."""
        return stream(self._seed, "server", purpose, self.tasks[-1].index, self.round)

    def log(self, name: str, value: float) -> None:
        """Records a diagnostic of this round."""
        self.logs[name] = float(value)

    def warn(self, message: str) -> None:
        """Records a warning once."""
        if message not in self.warnings:
            self.warnings.append(message)


def tree_nbytes(tree: Any) -> int:
    """Returns the bytes of all tensors in nested dicts, lists and tuples."""
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(tree_nbytes(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(tree_nbytes(value) for value in tree)
    return 0
