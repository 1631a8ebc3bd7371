"""Local training of one client: E epochs of steps on the flat model, without a synchronisation inside."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fcilbench.engine.data import DeviceData
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.lots import Lot, Work, one_pass
from fcilbench.engine.static import CaptureError, StaticStep
from fcilbench.engine.step import LocalStep, Objective
from fcilbench.spec.protocol import Protocol

__all__ = ["Objective", "Trainer", "Work"]


class Trainer:
    """Trains the flat model in place on a client's samples.

    Args:
        model: The resident model.
        data: Training samples.
        protocol: Learning rate, weight decay, precision, augmentation.
        capture: Whether steps are captured in a CUDA graph; needs a CUDA device.
        rates: Factors of the learning rate by patterns of piece names; the first pattern that matches counts.

    Attributes:
        notes: What the user should know, e.g. that a step could not be captured and is run plainly.
    """

    def __init__(
        self,
        model: FlatModel,
        data: DeviceData,
        protocol: Protocol,
        capture: bool = False,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self._data, self.rates = data, rates or {}
        self._step = LocalStep(model, data, protocol)
        self._capture = capture and model.vector.device.type == "cuda"
        # Padding rows would enter BatchNorm's statistics, so such a model's short batches are run as they are.
        self._pads = model.layout.buffers.start == model.layout.buffers.stop
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
        static, decay = None, self._step.decay(work.task)
        total = torch.zeros((), device=work.index.device)
        for _ in range(work.epochs):
            lots = one_pass(work, self._data, random)
            if self._capture and static is None:
                static = self._static_step(objective, work, lots[0])
            total.zero_()
            for lot in lots:
                if static is not None and (self._pads or len(lot.rows) == work.batch_size):
                    static(lot.rows, lot.draws)
                    continue
                mask = torch.ones(len(lot.rows), device=lot.rows.device)
                total += self._step.gradient(objective, work.task, lot.rows, lot.draws, mask)
                self._step.update(decay)
            if static is not None:
                total += static.total
                static.total.zero_()
        return total / work.pass_steps

    def _static_step(self, objective: Objective, work: Work, lot: Lot) -> StaticStep | None:
        """Returns the captured step for this work, making it if there is none; `None` where it cannot be captured."""
        if self._static is not None and self._static.fits(work.task, objective.context, work.batch_size):
            self._static.bind(objective.context)
            return self._static
        if not self._pads and len(lot.rows) < work.batch_size:
            return None
        self._static = StaticStep(self._step, objective, work.task, work.batch_size, lot.draws)
        try:
            self._static.capture(lot.rows, lot.draws)
        except CaptureError as error:
            self._static, self._capture = None, False
            self.notes.append(f"local steps are not captured in a CUDA graph: {error}")
        return self._static
