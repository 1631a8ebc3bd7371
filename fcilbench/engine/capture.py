"""The local step on buffers of one shape, captured in a CUDA graph where the device has them.

The last, short batch of a pass is padded and its padding masked out of the loss, so that one graph serves every step.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fcilbench.api.client import Context
from fcilbench.engine.data import DeviceData, Draws
from fcilbench.engine.precision import relative_difference
from fcilbench.engine.step import LocalStep, Minibatch, Objective, Work

_WARM_UP = 3
"""Steps before a capture, in which libraries choose their kernels and the optimiser makes its state."""
_TOLERANCE = 1e-2
"""Relative difference between a captured gradient and the plain one."""


class CaptureError(RuntimeError):
    """The step cannot be captured; the message says why."""


class CapturedStep:
    """A step that reads its minibatch and its context from buffers that stay where they are.

    It is made for one client's work, with any minibatch of it; other clients of the task may follow.

    Attributes:
        total: Sum of the losses since it was last set to zero.
    """

    def __init__(self, step: LocalStep, objective: Objective, work: Work, minibatch: Minibatch) -> None:
        self._step, self._work, self._optimiser = step, work, step.optimiser
        self._minibatch = _buffers(minibatch, work.batch_size)
        self._mask = torch.ones(work.batch_size, device=work.index.device)
        self._context = {name: value.clone() for name, value in objective.context.items()}
        self._objective = replace(objective, context=self._context)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.total = torch.zeros((), device=work.index.device)

    def fits(self, work: Work, context: Context) -> bool:
        """Returns whether these buffers serve another client: the same task, batch size, pieces, replay and context."""
        shapes, own = (
            {name: (value.shape, value.dtype) for name, value in tensors.items()}
            for tensors in (context, self._context)
        )
        same = (work.task, work.batch_size) == (self._work.task, self._work.batch_size)
        return (
            same
            and self._step.optimiser is self._optimiser
            and _replayed(work) is _replayed(self._work)
            and shapes == own
        )

    def bind(self, context: Context) -> None:
        """Copies a client's context into the buffers."""
        for name, value in context.items():
            self._context[name].copy_(value)

    def __call__(self, minibatch: Minibatch) -> None:
        """Runs one step on a minibatch of at most `batch_size` samples; its loss is added to `total`."""
        count = len(minibatch.rows)
        _fill(self._minibatch, minibatch)
        self._mask[:count] = 1.0
        self._mask[count:] = 0.0
        if self._graph is None:
            self._once()
        else:
            self._graph.replay()

    def capture(self, minibatch: Minibatch) -> None:
        """Captures the step, checks the captured gradient against the plain one, and leaves the model as it was.

        Raises:
            CaptureError: If the objective cannot be captured, or its captured gradient differs from the plain one.
        """
        model = self._step.model
        before, counters = model.vector.clone(), model.read_counters()
        try:
            self(minibatch)
            expected = model.gradient.clone()
            self._graph = self._captured()
            model.load(before, counters)
            self._optimiser.forget()
            self(minibatch)
            self._check(expected)
        except CaptureError:
            raise
        except RuntimeError as error:
            raise CaptureError(str(error).strip().splitlines()[0]) from error
        finally:
            model.load(before, counters)
            self._optimiser.forget()
            self.total.zero_()

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """Warms the step up on a side stream and captures it."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._once()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._once()
        return graph

    def _once(self) -> None:
        loss = self._step.gradient(self._objective, self._work, self._minibatch, self._mask)
        self._optimiser.step()
        self.total += loss

    def _check(self, expected: torch.Tensor) -> None:
        """Compares gradients, unless dropout makes two runs of the same step differ by design."""
        modules = self._step.model.network.modules()
        if any(isinstance(module, nn.Dropout) and module.p > 0 for module in modules):
            return
        difference = relative_difference(self._step.model.gradient, expected)
        if not difference < _TOLERANCE:
            raise CaptureError(f"the captured gradient differs from the plain one by {difference:.1e} (relative)")


def _replayed(work: Work) -> DeviceData | None:
    return None if work.extra is None else work.extra.data


def _buffers(minibatch: Minibatch, size: int) -> Minibatch:
    """Returns a minibatch of `size` samples to copy others into."""
    rows = minibatch.rows.new_zeros(size)
    draws: Draws = {name: value.new_zeros(size, *value.shape[1:]) for name, value in minibatch.draws.items()}
    return Minibatch(rows, draws, None if minibatch.extra is None else _buffers(minibatch.extra, size))


def _fill(buffers: Minibatch, minibatch: Minibatch) -> None:
    """Copies a minibatch into the first rows of the buffers and repeats its first sample in the rest."""
    _copy(buffers.rows, minibatch.rows)
    for name, buffer in buffers.draws.items():
        _copy(buffer, minibatch.draws[name])
    if buffers.extra is not None and minibatch.extra is not None:
        _fill(buffers.extra, minibatch.extra)


def _copy(buffer: torch.Tensor, values: torch.Tensor) -> None:
    count = len(values)
    buffer[:count].copy_(values)
    if count < len(buffer):
        buffer[count:].copy_(values[:1].expand(len(buffer) - count, *values.shape[1:]))
