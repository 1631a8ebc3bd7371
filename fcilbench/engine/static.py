"""The local step on buffers of one shape, captured in a CUDA graph where the device has them.

The last, short batch of a pass is padded and its padding masked out of the loss, so that one graph serves every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from fcilbench.api.client import Context
from fcilbench.api.task import Task
from fcilbench.engine.difference import relative_difference
from fcilbench.engine.step import Draws, LocalStep, Objective

_WARM_UP = 3
"""Steps before a capture, in which libraries choose their kernels and the optimiser makes its state."""
TOLERANCE = 1e-2
"""Relative difference between a captured gradient and the plain one."""


class CaptureError(RuntimeError):
    """The step cannot be captured; the message says why."""


class StaticStep:
    """A step that reads its batch and its context from buffers that stay where they are.

    Args:
        step: The step.
        objective: What is optimised; its context is copied into buffers.
        task: The current task.
        batch_size: Rows of the buffers.
        draws: Random numbers of any one batch: their names, types and shapes.

    Attributes:
        total: Sum of the losses since it was last set to zero.
    """

    def __init__(self, step: LocalStep, objective: Objective, task: Task, batch_size: int, draws: Draws) -> None:
        device = step.model.vector.device
        self._step, self._task = step, task
        self._decay = step.decay(task)
        self._rows = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._mask = torch.ones(batch_size, device=device)
        self._draws = {name: value.new_zeros(batch_size, *value.shape[1:]) for name, value in draws.items()}
        self._context = {name: value.clone() for name, value in objective.context.items()}
        self._objective = replace(objective, context=self._context)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.total = torch.zeros((), device=device)

    def fits(self, task: Task, context: Context, batch_size: int) -> bool:
        """Whether these buffers serve a task, a batch size and a context of these names and shapes."""
        shapes = {name: (value.shape, value.dtype) for name, value in context.items()}
        own = {name: (value.shape, value.dtype) for name, value in self._context.items()}
        return task == self._task and batch_size == len(self._rows) and shapes == own

    def bind(self, context: Context) -> None:
        """Copies a client's context into the buffers."""
        for name, value in context.items():
            self._context[name].copy_(value)

    def __call__(self, rows: torch.Tensor, draws: Draws) -> None:
        """Runs one step on the samples at `rows`, int64 `[n]`, n <= batch size; their loss is added to `total`."""
        count = len(rows)
        _fill(self._rows, rows)
        for name, buffer in self._draws.items():
            _fill(buffer, draws[name])
        self._mask[:count] = 1.0
        self._mask[count:] = 0.0
        if self._graph is None:
            self._once()
        else:
            self._graph.replay()

    def capture(self, rows: torch.Tensor, draws: Draws) -> None:
        """Captures the step, checks the captured gradient against the plain one, and leaves the model as it was.

        Args:
            rows: Positions of a real batch, for warm-up and check.
            draws: Its random numbers.

        Raises:
            CaptureError: If the objective cannot be captured, or its captured gradient differs from the plain one.
        """
        model = self._step.model
        before, counters = model.vector.clone(), model.read_counters()
        try:
            self(rows, draws)
            expected = model.gradient.clone()
            self._capture()
            model.load(before, counters)
            self._step.reset()
            self(rows, draws)
            self._check(expected)
        except CaptureError:
            raise
        except RuntimeError as error:
            raise CaptureError(str(error).strip().splitlines()[0]) from error
        finally:
            model.load(before, counters)
            self._step.reset()
            self.total.zero_()

    def _capture(self) -> None:
        self._graph = captured(self._once)

    def _once(self) -> None:
        loss = self._step.gradient(self._objective, self._task, self._rows, self._draws, self._mask)
        self._step.update(self._decay)
        self.total += loss

    def _check(self, expected: torch.Tensor) -> None:
        """Compares gradients, unless dropout makes two runs of the same step differ by design."""
        modules = self._step.model.network.modules()
        if any(isinstance(module, nn.Dropout) and module.p > 0 for module in modules):
            return
        difference = relative_difference(self._step.model.gradient, expected)
        if not difference < TOLERANCE:
            raise CaptureError(f"the captured gradient differs from the plain one by {difference:.1e} (relative)")


def captured(once: Callable[[], None], beside: torch.cuda.CUDAGraph | None = None) -> torch.cuda.CUDAGraph:
    """Warms a function up on a side stream and captures it.

    Args:
        once: Runs a step on buffers that stay where they are.
        beside: A graph that never runs at the same time: both share one pool of memory.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            once()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=None if beside is None else beside.pool()):
        once()
    return graph


def _fill(buffer: torch.Tensor, values: torch.Tensor) -> None:
    """Copies `values` `[n, ...]` into the first rows of a buffer and repeats the first one in the rest."""
    count = len(values)
    buffer[:count].copy_(values)
    if count < len(buffer):
        buffer[count:].copy_(values[:1].expand(len(buffer) - count, *values.shape[1:]))
