"""Local training of one client: E epochs of steps on the flat model, without a synchronisation inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fcilbench.api.protocol import Protocol
from fcilbench.api.task import Task
from fcilbench.engine.data import DeviceData
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.static import CaptureError, StaticStep
from fcilbench.engine.step import Draws, LocalStep, Objective

__all__ = ["Objective", "Trainer", "Work"]


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
        capture: Whether steps are captured in a CUDA graph; needs a CUDA device.

    Attributes:
        notes: What the user should know, e.g. that a step could not be captured and is run plainly.
    """

    def __init__(self, model: FlatModel, data: DeviceData, protocol: Protocol, capture: bool = False) -> None:
        self._data = data
        self._step = LocalStep(model, data, protocol)
        self._capture = capture and model.vector.device.type == "cuda"
        # Padding rows would enter BatchNorm's statistics, so such a model's short batches are run as they are.
        self._pads = model.parts.buffers.start == model.parts.buffers.stop
        self._static: StaticStep | None = None
        self.notes: list[str] = []

    def train(self, objective: Objective, work: Work, random: np.random.Generator) -> torch.Tensor:
        """Runs E passes of `ceil(n / batch_size)` steps over a client's samples.

        Args:
            objective: What is optimised.
            work: Samples, task, epochs and batch size.
            random: The client's stream of this round.

        Returns:
            Mean loss over the steps of the last epoch, a scalar on the device.
        """
        self._step.reset()
        self._step.model.network.train()
        count, size = len(work.index), work.batch_size
        static, decay = None, self._step.decay(work.task)
        total = torch.zeros((), device=work.index.device)
        for _ in range(work.epochs):
            order = work.index[torch.from_numpy(random.permutation(count)).to(work.index.device)]
            draws = self._data.draw(count, random)
            if self._capture and static is None:
                static = self._static_step(objective, work, order[:size], _rows(draws, slice(0, size)))
            total.zero_()
            for start in range(0, count, size):
                span = slice(start, min(start + size, count))
                rows, part = order[span], _rows(draws, span)
                if static is not None and (self._pads or len(rows) == size):
                    static(rows, part)
                    continue
                mask = torch.ones(len(rows), device=rows.device)
                total += self._step.gradient(objective, work.task, rows, part, mask)
                self._step.update(decay)
            if static is not None:
                total += static.total
                static.total.zero_()
        return total / -(-count // size)

    def _static_step(self, objective: Objective, work: Work, rows: torch.Tensor, draws: Draws) -> StaticStep | None:
        """Returns the captured step for this work, making it if there is none; `None` where it cannot be captured."""
        if self._static is not None and self._static.fits(work.task, objective.context, work.batch_size):
            self._static.bind(objective.context)
            return self._static
        if not self._pads and len(rows) < work.batch_size:
            return None
        self._static = StaticStep(self._step, objective, work.task, work.batch_size, draws)
        try:
            self._static.capture(rows, draws)
        except CaptureError as error:
            self._static, self._capture = None, False
            self.notes.append(f"local steps are not captured in a CUDA graph: {error}")
        return self._static


def _rows(draws: Draws, span: slice) -> Draws:
    return {name: value[span] for name, value in draws.items()}
