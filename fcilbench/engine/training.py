"""Local training of one client: E epochs of AdamW on the flat model, without a synchronisation inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fcilbench.api.client import Batch, Context, Net
from fcilbench.api.protocol import Protocol
from fcilbench.api.task import Task
from fcilbench.engine.data import DeviceData
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.precision import autocast

Loss = Callable[[Net, Batch, Context], torch.Tensor]
GradientHook = Callable[[torch.Tensor, torch.Tensor, Context], None]


@dataclass(frozen=True)
class Objective:
    """What a client optimises: functions of tensors.

    Attributes:
        loss: Scalar loss of a batch.
        gradient: Changes the flat gradient `[P]` in place.
        context: Tensors that both read.
    """

    loss: Loss
    gradient: GradientHook
    context: Context


@dataclass(frozen=True)
class Work:
    """What one client trains on in one round.

    Attributes:
        index: Positions of its samples, int64 `[n]` on the device, n > 0.
        task: The current task.
        epochs: Number of passes E.
        batch_size: Samples per step; the last step of a pass takes what is left.
    """

    index: torch.Tensor
    task: Task
    epochs: int
    batch_size: int


class Trainer:
    """Trains the flat model in place on a client's samples.

    Args:
        model: The resident model.
        data: Training samples.
        protocol: Learning rate, weight decay, precision, augmentation.
    """

    def __init__(self, model: FlatModel, data: DeviceData, protocol: Protocol) -> None:
        self._model, self._data, self._protocol = model, data, protocol
        # AdamW's own decay would also shrink the head rows of other tasks, whose gradient is exactly zero.
        self._optimiser = torch.optim.AdamW([model.theta], lr=protocol.lr, weight_decay=0.0, fused=True)

    def train(self, objective: Objective, work: Work, random: np.random.Generator) -> torch.Tensor:
        """Runs E passes of `ceil(n / batch_size)` steps over a client's samples.

        Args:
            objective: What is optimised.
            work: Samples, task, epochs and batch size.
            random: The client's stream of this round.

        Returns:
            Mean loss over the steps of the last epoch, a scalar on the device.
        """
        self._reset_optimiser()
        self._model.network.train()
        decay = self._decay(work.task)
        count, batch_size = len(work.index), work.batch_size
        total = torch.zeros((), device=work.index.device)
        for _ in range(work.epochs):
            order = work.index[torch.from_numpy(random.permutation(count)).to(work.index.device)]
            draws = self._data.draw(count, random)
            total.zero_()
            for start in range(0, count, batch_size):
                span = slice(start, min(start + batch_size, count))
                rows = order[span]
                inputs = self._data.augmented(rows, draws[span]) if self._protocol.augment else self._data.plain(rows)
                mask = torch.ones(len(rows), device=rows.device)
                batch = Batch(inputs, self._data.labels[rows], mask, work.task)
                total += self._step(objective, batch, decay)
        return total / -(-count // batch_size)

    def _step(self, objective: Objective, batch: Batch, decay: torch.Tensor | None) -> torch.Tensor:
        model = self._model
        model.gradient.zero_()
        with autocast(self._protocol.precision, model.vector.device):
            loss = objective.loss(model, batch, objective.context)
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            objective.gradient(model.gradient, model.theta.detach(), objective.context)
        if decay is not None:
            model.vector[model.parts.trainable].mul_(decay)
        self._optimiser.step()
        return loss.detach().float()

    def _reset_optimiser(self) -> None:
        """Makes the optimiser new without allocating: each client and round starts without moments."""
        for state in self._optimiser.state.values():
            for value in state.values():
                value.zero_()

    def _decay(self, task: Task) -> torch.Tensor | None:
        """Returns the factor `1 - lr * wd` per coordinate, 1 in the head rows of other tasks; `None` without decay."""
        if self._protocol.weight_decay == 0.0:
            return None
        parts = self._model.parts
        rate = 1.0 - self._protocol.lr * self._protocol.weight_decay
        factor = torch.full_like(self._model.gradient, rate)
        head = factor[parts.head]
        weight = head[: parts.classes * parts.features].view(parts.classes, parts.features)
        bias = head[parts.classes * parts.features :]
        for rows in (weight, bias):
            rows[: task.offset] = 1.0
            rows[task.seen :] = 1.0
        return factor
