"""Local training of several clients at once: one batched step for all of them, rows of one matrix as their models.

A client of a small model keeps a device busy for a fraction of a step's overhead; several share it. Every client keeps
its own batches, random numbers, optimiser state and number of steps, so the result is the one-by-one result up to
rounding. A client that is finished leaves the stack.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fcilbench.engine.data import DeviceData
from fcilbench.engine.difference import REORDERED, relative_difference
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.lots import Timetable, Work, timetable
from fcilbench.engine.stacked_static import StaticStack
from fcilbench.engine.stacked_step import StackedObjective, StackedStep, StackError
from fcilbench.engine.static import CaptureError
from fcilbench.engine.step import Objective
from fcilbench.spec.protocol import Protocol

__all__ = ["StackError", "StackedTrainer"]


class StackedTrainer:
    """Trains up to K clients from one start.

    Args:
        model: The resident model; its network is called with the clients' parameters, and its own are overwritten.
        data: Training samples.
        protocol: Learning rate, weight decay, precision, augmentation.
        size: K; models, gradients and AdamW's moments take 20 K P bytes.
        capture: Whether steps are captured in CUDA graphs; needs a CUDA device.

    Attributes:
        size: K.
        vectors: What the clients of the last call have become, `[K, D]`, in the order of that call.
        notes: What the user should know, e.g. that a step could not be captured and is run plainly.
    """

    def __init__(
        self, model: FlatModel, data: DeviceData, protocol: Protocol, size: int, capture: bool = False
    ) -> None:
        self.size = size
        self.vectors = torch.empty(size, len(model.vector), device=model.vector.device)
        self.notes: list[str] = []
        self._model, self._data, self._protocol = model, data, protocol
        self._step = StackedStep(model, data, protocol, size)
        self._capture = capture and model.vector.device.type == "cuda"
        self._static: StaticStack | None = None

    def train(
        self,
        start: torch.Tensor,
        objectives: Sequence[Objective],
        works: Sequence[Work],
        randoms: Sequence[np.random.Generator],
    ) -> torch.Tensor:
        """Trains the clients and leaves their models in `vectors`.

        Args:
            start: The vector `[D]` that all begin with.
            objectives: One each: the same functions, the client's own context.
            works: Samples, task, epochs and batch size of each; task and batch size are the same.
            randoms: Each client's stream of this round.

        Returns:
            Each client's mean loss over the steps of its last epoch, `[k]` on the device.

        Raises:
            StackError: If the model has buffers or random layers, the contexts do not fit, the loss cannot be batched,
                or the batched gradient is not the plain one.
        """
        parts = self._model.layout
        if parts.buffers.start != parts.buffers.stop or len(self._model.counters):
            raise StackError("the model has buffers that change in training")
        # The first rows are those with most steps, so that whoever is finished leaves from the end.
        order = sorted(range(len(works)), key=lambda k: -works[k].steps)
        objective = StackedObjective.of(works[0].task, [objectives[k] for k in order])
        table = timetable([works[k] for k in order], self._data, [randoms[k] for k in order])
        self._step.reset(start)
        losses = torch.zeros(len(works), device=start.device)
        losses[torch.tensor(order, device=start.device)] = self._run(start, objective, table, order)
        return losses

    def _run(
        self, start: torch.Tensor, objective: StackedObjective, table: Timetable, order: Sequence[int]
    ) -> torch.Tensor:
        static = self._static_stack(start, objective, table) if self._capture else None
        decay, totals = self._step.single.decay(objective.task), torch.zeros(len(order), device=start.device)
        for number, active in enumerate(table.active):
            if static is not None and static.serves(active):
                static(table, number)
            else:
                totals[:active] += self._plain(start, objective, table, number, decay)
            following = table.active[number + 1] if number + 1 < len(table.active) else 0
            for k in range(following, active):
                self.vectors[order[k]].copy_(self._step.vectors[k])
        return totals if static is None else totals + static.take_total(len(order))

    def _plain(
        self,
        start: torch.Tensor,
        objective: StackedObjective,
        table: Timetable,
        number: int,
        decay: torch.Tensor | None,
    ) -> torch.Tensor:
        """Runs one step of the active clients and returns what it adds to their mean losses, `[k]`."""
        active, width = table.active[number], table.widths[number]
        rows, mask = table.rows[number, :active, :width], table.mask[number, :active, :width]
        draws = {name: values[number, :active, :width] for name, values in table.draws.items()}
        losses = self._step.gradient(objective, rows, draws, mask)
        if number == 0:
            self._compare(start, objective, table)
        self._step.update(decay, active)
        return losses * table.share[number, :active]

    def _static_stack(self, start: torch.Tensor, objective: StackedObjective, table: Timetable) -> StaticStack | None:
        """Returns the captured step for this task, making it if there is none; `None` where it cannot be captured."""
        if self._static is None or not self._static.fits(objective, table):
            self._static = None  # frees its graphs first
            self._static = StaticStack(self._step, objective, table)
        self._static.bind(objective)
        try:
            self._static.prepare(start, table, lambda: self._compare(start, objective, table))
        except CaptureError as error:
            self._static, self._capture = None, False
            self._step.reset(start)
            self.notes.append(f"stacked steps are not captured in a CUDA graph: {error}")
        return self._static

    def _compare(self, start: torch.Tensor, objective: StackedObjective, table: Timetable) -> None:
        """Compares the first client's gradient of the first step with the plain one.

        Raises:
            StackError: If they differ.
        """
        single, context = self._step.single, objective.context(0)
        draws = {name: values[0, 0] for name, values in table.draws.items()}
        self._model.load(start, self._model.counters)
        plain = Objective(objective.loss, objective.hook, context)
        single.gradient(plain, objective.task, table.rows[0, 0], draws, table.mask[0, 0])
        difference = relative_difference(self._step.gradients[0], self._model.gradient)
        if not difference < REORDERED[self._protocol.precision]:
            raise StackError(f"the batched gradient differs from the plain one by {difference:.1e} (relative)")
