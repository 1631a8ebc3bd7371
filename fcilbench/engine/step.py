"""One local step on the flat model: augment, forward, backward, gradient hook, decay, AdamW. Nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fcilbench.api.client import Batch, Context, Net
from fcilbench.api.task import Task
from fcilbench.engine.data import DeviceData
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.frozen import FrozenFeatures, Remembered
from fcilbench.engine.precision import training_context
from fcilbench.spec.protocol import Protocol

Loss = Callable[[Net, Batch, Context], torch.Tensor]
GradientHook = Callable[[torch.Tensor, Net, Context], None]
Draws = Mapping[str, torch.Tensor]


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


class LocalStep:
    """The step, with the optimiser that it owns.

    Args:
        model: The resident model, trained in place.
        data: Training samples.
        protocol: Learning rate, weight decay, precision, augmentation.

    Attributes:
        model: The resident model.
        optimiser: AdamW on the flat parameters.
        frozen: Features of the samples, where the backbone is frozen.
    """

    def __init__(self, model: FlatModel, data: DeviceData, protocol: Protocol) -> None:
        self.model = model
        self._data, self._protocol = data, protocol
        self.frozen = FrozenFeatures(model, data, protocol)
        # AdamW's own decay would also shrink the head rows of other tasks, whose gradient is exactly zero.
        self.optimiser = torch.optim.AdamW(
            [model.parameters],
            lr=protocol.lr,
            weight_decay=0.0,
            fused=True,
            capturable=model.vector.device.type == "cuda",
        )

    def reset(self) -> None:
        """Makes the optimiser new without allocating: each client and round starts without moments."""
        for state in self.optimiser.state.values():
            for value in state.values():
                value.zero_()

    def decay(self, task: Task) -> torch.Tensor | None:
        """Returns the factor `1 - lr * wd` per coordinate, 1 in the head rows of other tasks; `None` without decay."""
        if self._protocol.weight_decay == 0.0:
            return None
        parts = self.model.layout
        rate = 1.0 - self._protocol.lr * self._protocol.weight_decay
        factor = torch.full_like(self.model.gradient, rate)
        head = factor[parts.head]
        weight = head[: parts.classes * parts.features].view(parts.classes, parts.features)
        bias = head[parts.classes * parts.features :]
        for rows in (weight, bias):
            rows[: task.offset] = 1.0
            rows[task.seen :] = 1.0
        return factor

    def gradient(
        self, objective: Objective, task: Task, rows: torch.Tensor, draws: Draws, mask: torch.Tensor
    ) -> torch.Tensor:
        """Fills the flat gradient for one batch, gradient hook included.

        Args:
            objective: What is optimised.
            task: The current task.
            rows: Positions of the samples, int64 `[B]`.
            draws: Random numbers of the augmentation, each `[B]`.
            mask: float32 `[B]`, 0 for padding rows.

        Returns:
            The detached loss, a float32 scalar on the device.
        """
        model = self.model
        model.gradient.zero_()
        inputs = self._data.augmented(rows, draws) if self._protocol.augment else self._data.plain(rows)
        batch = Batch(inputs, self._data.labels[rows], mask, task)
        known = self.frozen.of(rows)
        net = model if known is None else Remembered(model, inputs, known)
        with training_context(self._protocol.precision, model.vector.device):
            loss = objective.loss(net, batch, objective.context)
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            objective.gradient(model.gradient, model, objective.context)
        return loss.detach().float()

    def update(self, decay: torch.Tensor | None) -> None:
        """Moves the parameters along the flat gradient."""
        if decay is not None:
            self.model.vector[self.model.layout.trainable].mul_(decay)
        self.optimiser.step()
