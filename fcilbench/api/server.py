"""What a method sees on the server: the global vector, this round's updates and its own persistent state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import nn

from fcilbench.api.backbone import ImageInput
from fcilbench.api.client import Net, State
from fcilbench.api.message import Layout, Message
from fcilbench.api.schedule import Task
from fcilbench.spec import protocol as _protocol
from fcilbench.vectors.sums import client_weights, weighted_sum


@dataclass(frozen=True)
class Updates:
    """What the clients with data sent this round; rows are in client-id order.

    Attributes:
        delta: float32 `[N, D]`, each client's state vector minus the broadcast one. Do not change it in place.
        samples: Number of samples n_k of each row.
        clients: Client id of each row.
        statistics: Each client's statistics message.
    """

    delta: torch.Tensor
    samples: tuple[int, ...]
    clients: tuple[int, ...]
    statistics: tuple[Message, ...]
    layout: Layout

    @property
    def weights(self) -> torch.Tensor:
        """Sample weights p_k = n_k / n, float32 `[N]`."""
        samples = torch.tensor(self.samples, dtype=torch.float64)
        return (samples / samples.sum()).to(self.delta)

    @property
    def backbone(self) -> torch.Tensor:
        """Backbone columns, `[N, D_backbone]`."""
        return self.delta[:, self.layout.backbone]

    @property
    def head_weight(self) -> torch.Tensor:
        """Head weight updates, `[N, C, F]`."""
        size = self.layout.classes * self.layout.features
        start = self.layout.head.start
        return self.delta[:, start : start + size].reshape(-1, self.layout.classes, self.layout.features)

    @property
    def head_bias(self) -> torch.Tensor:
        """Head bias updates, `[N, C]`."""
        return self.delta[:, self.layout.head.stop - self.layout.classes : self.layout.head.stop]

    def mean(self, part: slice | None = None, weighting: Literal["samples", "uniform"] = "samples") -> torch.Tensor:
        """Returns the mean of the updates, or of one part of them, by sample count (FedAvg) or of equal weights."""
        rows = self.delta if part is None else self.delta[:, part]
        return weighted_sum(client_weights(self.weights, weighting), rows)


class Server(Protocol):
    """The server of a federation.

    Attributes:
        vector: Global state vector, float32 `[D]`; change it through `step`.
        state: The method's own persistent state.
        tasks: The tasks of the stream seen so far, the current one included.
        round: Round within the task, from 0.
        clients: Number of registered clients N.
        image_input: Size and normalisation of the images that the backbone reads; `None` for texts and arrays.
    """

    vector: torch.Tensor
    state: State
    layout: Layout
    task: Task
    tasks: Sequence[Task]
    round: int
    clients: int
    protocol: _protocol.Protocol
    image_input: ImageInput | None

    @property
    def net(self) -> Net:
        """The network with the global vector, in eval mode.

        For training on the server, `net.under(vector)` runs it with any state vector `[D]`: gradients flow into
        `vector` if it requires them, and into the inputs.
        """

    def frozen(self, name: str) -> torch.Tensor:
        """Returns a parameter that is not trained, by its name in the network. Do not change it."""

    @property
    def network(self) -> nn.Module:
        """The module behind `net`, for its architecture and forward hooks; remove them again."""

    @property
    def last_task(self) -> bool:
        """Whether no task of the stream follows the current one."""

    def step(self, direction: torch.Tensor, part: slice | None = None) -> None:
        """Adds `direction` to the global vector, or to one part of it.

        Raises:
            ValueError: If the shape does not fit, or a value is not finite.
        """

    def random(self, purpose: str) -> np.random.Generator:
        """Returns a generator keyed by (train seed, purpose, task, round)."""

    def log(self, name: str, value: float) -> None:
        """Records a diagnostic of this round, shown in curves as `name`."""

    def warn(self, message: str) -> None:
        """Records a warning once; it is written to the row."""
