"""The stacked step on buffers of one shape, captured in CUDA graphs where the device has them.

A graph serves a fixed number of slots. As clients finish, a graph of half as many slots takes over; until then the
slots of those who are finished go on over padding, after their models have been copied out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fcilbench.api.client import Context
from fcilbench.engine.difference import relative_difference
from fcilbench.engine.lots import Timetable
from fcilbench.engine.stacked_step import StackedObjective, StackedStep
from fcilbench.engine.static import TOLERANCE, CaptureError, captured

WORTH = 32
"""Steps of a round below which a graph of its own is not captured: that costs about six plain ones."""


class StaticStack:
    """A stacked step that reads its batches and contexts from buffers that stay where they are.

    Args:
        step: The step.
        objective: What is optimised; its contexts are copied into buffers.
        table: A timetable whose shapes the buffers get.
    """

    def __init__(self, step: StackedStep, objective: StackedObjective, table: Timetable) -> None:
        slots, width = len(step.vectors), table.rows.shape[2]
        self._step, self._decay = step, step.single.decay(objective.task)
        # Slots without a client train on a sample of the task, masked out: its label is legal.
        self._rows = table.rows[0, :1, :1].repeat(slots, width)
        self._mask = table.mask.new_zeros(slots, width)
        self._share = table.share.new_zeros(slots)
        self._total = table.share.new_zeros(slots)
        self._draws = {name: v.new_zeros(slots, *v.shape[2:]) for name, v in table.draws.items()}
        shared = {name: value.clone() for name, value in objective.shared.items()}
        own = {name: value.new_zeros(slots, *value.shape[1:]) for name, value in objective.own.items()}
        self._objective = replace(objective, shared=shared, own=own)
        self._graphs: dict[int, torch.cuda.CUDAGraph | None] = {}

    def fits(self, objective: StackedObjective, table: Timetable) -> bool:
        """Whether these buffers serve a task, a batch size and contexts of these names and shapes."""
        own = _shapes(self._objective.own, 1) == _shapes(objective.own, 1)
        shared = _shapes(self._objective.shared) == _shapes(objective.shared)
        return own and shared and objective.task == self._objective.task and table.rows.shape[2] == self._rows.shape[1]

    def bind(self, objective: StackedObjective) -> None:
        """Copies the clients' contexts into the buffers."""
        for name, value in objective.shared.items():
            self._objective.shared[name].copy_(value)
        for name, values in objective.own.items():
            self._objective.own[name][: len(values)].copy_(values)

    def serves(self, active: int) -> bool:
        """Whether there is a graph for so many clients."""
        return any(slots >= active for slots in self._graphs)

    def prepare(self, start: torch.Tensor, table: Timetable, compare: Callable[[], None]) -> None:
        """Captures the graphs that a round is worth, checks them, and leaves all clients at the start.

        Args:
            start: The vector `[D]` with which all begin.
            table: The round.
            compare: Checks the gradients of the first step as a plain stack has them.

        Raises:
            CaptureError: If the step cannot be captured, or its captured gradient differs from the plain one.
            StackError: If the clients cannot be trained together at all.
        """
        self._total.zero_()
        for slots, less in halves(len(self._step.vectors)):
            steps = sum(less < active <= slots for active in table.active)
            if steps < WORTH or slots in self._graphs:
                continue
            self._put(table, 0, slots)
            self._gradient(slots)
            if not self._graphs:
                compare()
            try:
                self._check(start, table, slots, self._step.gradients[:slots].clone())
            except CaptureError:
                raise
            except RuntimeError as error:
                raise CaptureError(str(error).strip().splitlines()[0]) from error
            finally:
                self._step.reset(start)
                self._total.zero_()

    def __call__(self, table: Timetable, number: int) -> None:
        """Runs a step of a round; the clients' losses are added up."""
        slots = min(slots for slots in self._graphs if slots >= table.active[number])
        self._put(table, number, slots)
        self._replay(slots)

    def take_total(self, count: int) -> torch.Tensor:
        """Returns what the steps since `prepare` added to the first clients' mean losses, `[count]`."""
        return self._total[:count].clone()

    def _put(self, table: Timetable, number: int, slots: int) -> None:
        count = min(slots, table.rows.shape[1])
        self._rows[:count].copy_(table.rows[number, :count])
        self._mask[:count].copy_(table.mask[number, :count])
        self._mask[count:].zero_()
        self._share[:count].copy_(table.share[number, :count])
        self._share[count:].zero_()
        for name, buffer in self._draws.items():
            buffer[:count].copy_(table.draws[name][number, :count])

    def _replay(self, slots: int) -> None:
        graph = self._graphs[slots]
        if graph is None:
            self._once(slots)
        else:
            graph.replay()

    def _gradient(self, slots: int) -> torch.Tensor:
        own = {name: values[:slots] for name, values in self._objective.own.items()}
        draws = {name: values[:slots] for name, values in self._draws.items()}
        objective = replace(self._objective, own=own)
        return self._step.gradient(objective, self._rows[:slots], draws, self._mask[:slots])

    def _once(self, slots: int) -> None:
        losses, share = self._gradient(slots), self._share[:slots]
        self._step.update(self._decay, slots)
        # The loss of a slot without a client may be anything.
        self._total[:slots] += torch.where(share > 0, losses * share, 0.0)

    def _capture(self, slots: int) -> torch.cuda.CUDAGraph | None:
        return captured(lambda: self._once(slots), next((graph for graph in self._graphs.values() if graph), None))

    def _check(self, start: torch.Tensor, table: Timetable, slots: int, expected: torch.Tensor) -> None:
        graph = self._capture(slots)
        self._graphs[slots] = graph
        self._step.reset(start)
        self._put(table, 0, slots)
        self._replay(slots)
        count = min(slots, table.rows.shape[1])
        difference = relative_difference(self._step.gradients[:count], expected[:count])
        if not difference < TOLERANCE:
            raise CaptureError(f"the captured gradient differs from the plain one by {difference:.1e} (relative)")


def halves(size: int) -> list[tuple[int, int]]:
    """Returns the numbers of slots that have a graph, each with the next smaller one.

    Example:
        >>> halves(10)
        [(10, 5), (5, 3), (3, 2), (2, 0)]
    """
    found = [size]
    while found[-1] > 2:
        found.append(-(-found[-1] // 2))
    return list(zip(found, [*found[1:], 0], strict=True))


def _shapes(context: Context, skip: int = 0) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape[skip:], value.dtype) for name, value in context.items()}
