"""Local training of one client: E epochs of steps on the flat model, without a synchronisation inside.

A step: augment, forward, backward, gradient hook, weight decay, optimiser. On a GPU it is captured in a CUDA graph, on
buffers of one shape: the last, short batch of a pass is padded, and its padding masked out of the loss, so that one
graph serves every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from fcilbench.api import Batch, Context, Net, Protocol, Task
from fcilbench.engine.data import DeviceData, Draws
from fcilbench.engine.model import FlatModel
from fcilbench.engine.optimiser import LocalOptimiser
from fcilbench.engine.precision import relative_difference, training_context
from fcilbench.errors import PluginError

_WARM_UP = 3
"""Steps before a capture, in which libraries choose their kernels and the optimiser makes its state."""
_TOLERANCE = 1e-2
"""Relative difference between a captured gradient and the plain one."""


@dataclass(frozen=True)
class Objective:
    """What a client optimises: the method's hooks `loss` and `gradient`, and the context that both read."""

    loss: Callable[[Net, Batch, Context], torch.Tensor]
    gradient: Callable[[torch.Tensor, Net, Context], None]
    context: Context


@dataclass(frozen=True)
class Extra:
    """Samples that a client mixes into its training (`Aggregator.replay`), and the stream that draws of them."""

    data: DeviceData
    random: np.random.Generator


@dataclass(frozen=True)
class Work:
    """What one client trains on in one round, and which pieces of the model.

    Attributes:
        index: Positions of its samples, int64 `[n]` on the device, n > 0.
        batch_size: Samples per step; the last step of a pass takes what is left.
        train: Patterns of the names of the pieces that the optimiser moves (`Wire.train`).
        extra: Samples of which each step gets `batch_size` as `batch.extra`, or `None`.
        steps: Number of steps after which a slow client stops; `None` for all steps of all passes.
        done: Passes of the same training run that earlier rounds made: the optimiser goes on where they ended.
        total: Passes of the whole run at most, for the learning-rate schedule; `None`: `epochs`.
    """

    index: torch.Tensor
    task: Task
    epochs: int
    batch_size: int
    train: tuple[str, ...] = ("*",)
    extra: Extra | None = None
    steps: int | None = None
    done: int = 0
    total: int | None = None


def batch_spans(samples: int, size: int, batch_statistics: bool) -> list[slice]:
    """Returns the batches of one pass over a client's samples, `ceil(samples / size)` of them.

    One sample has no batch statistics: where the network has BatchNorm, a last batch of one joins the batch before.
    """
    starts = list(range(0, samples, size))
    if batch_statistics and samples > size > 1 and samples % size == 1:
        starts.pop()
    return [slice(*ends) for ends in zip(starts, [*starts[1:], samples], strict=True)]


@dataclass(frozen=True)
class Minibatch:
    """Positions `[n]` of the samples of one step, the random numbers of their augmentation, and the replayed ones."""

    rows: torch.Tensor
    draws: Draws
    extra: Minibatch | None = None


class Trainer:
    """Trains the flat model in place on a client's samples.

    Steps are captured in a CUDA graph if `capture` asks for it and the device can. `rates` are factors of the learning
    rate by patterns of piece names, of which the first that matches counts.

    Attributes:
        optimiser: The optimiser of the pieces that the current work trains.
        notes: What the user should know, e.g. why steps are not captured.
    """

    def __init__(
        self,
        model: FlatModel,
        data: DeviceData,
        protocol: Protocol,
        capture: bool = False,
        rates: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.model, self._data, self._protocol, self._rates = model, data, protocol, rates
        self._train: tuple[str, ...] = ("*",)
        self.optimiser = LocalOptimiser(model, protocol, self._train, rates)
        self._capture = capture and model.vector.device.type == "cuda"
        # Padding rows would enter BatchNorm's statistics: the short batches of such a model are not padded.
        self._pads = model.layout.buffers.start == model.layout.buffers.stop and not model.batch_norms
        self._captured: CapturedStep | None = None
        self.notes: list[str] = []

    def train(self, objective: Objective, work: Work, random: np.random.Generator) -> torch.Tensor:
        """Runs E passes over a client's samples, in `batch_spans`; returns the mean loss of the last pass.

        Raises:
            ValueError: If the work trains no parameter, or replays from no samples.
        """
        first = self.begin(work)
        self.model.network.train()
        if 1 in (len(work.index), work.batch_size):  # one sample has no batch statistics: the running ones are used
            for norm in self.model.batch_norms:
                norm.eval()
        network = self.model.network
        untrained = [network.get_parameter(piece.name) for piece in self.optimiser.untrained]
        for parameter in untrained:  # spares the backward pass
            parameter.requires_grad_(False)
        try:
            return self._run(objective, work, random, first)
        finally:
            for parameter in untrained:
                parameter.requires_grad_(True)

    def _run(self, objective: Objective, work: Work, random: np.random.Generator, first: int) -> torch.Tensor:
        captured, optimiser, number = None, self.optimiser, 0
        total = torch.zeros((), device=work.index.device)
        for _ in range(work.epochs):
            if number == work.steps:
                break
            minibatches = self._one_pass(work, random)
            minibatches = minibatches if work.steps is None else minibatches[: work.steps - number]
            if self._capture and captured is None:
                captured = self._captured_step(objective, work, minibatches[0])
            total.zero_()
            for minibatch in minibatches:
                optimiser.set_rate(first + number)
                number += 1
                if captured is not None and (self._pads or len(minibatch.rows) == work.batch_size):
                    captured(minibatch)
                    continue
                mask = torch.ones(len(minibatch.rows), device=minibatch.rows.device)
                total += self.gradient(objective, work, minibatch, mask)
                optimiser.step()
            if captured is not None:
                total += captured.total
                captured.total.zero_()
        return total / len(minibatches)

    def begin(self, work: Work) -> int:
        """Prepares the optimiser for a client's round; returns the number of its first step in its training run."""
        if work.train != self._train:
            self._train = work.train
            self.optimiser = LocalOptimiser(self.model, self._protocol, work.train, self._rates)
        spans = batch_spans(len(work.index), work.batch_size, bool(self.model.batch_norms))
        self.optimiser.reset(work.task, (work.total or work.epochs) * len(spans), keep=work.done > 0)
        return work.done * len(spans)

    def moments(self) -> dict[str, Any]:
        """Returns the optimiser's moments and the pieces that they are of, for a checkpoint between two rounds."""
        return {"train": self._train, "moments": self.optimiser.moments()}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Sets what `moments` returned."""
        self._train = tuple(record["train"])
        self.optimiser = LocalOptimiser(self.model, self._protocol, self._train, self._rates)
        self.optimiser.restore(record["moments"])

    def gradient(self, objective: Objective, work: Work, minibatch: Minibatch, mask: torch.Tensor) -> torch.Tensor:
        """Fills the flat gradient for one minibatch, gradient hook included, and returns the detached float32 loss.

        `mask` `[B]` is 1 for samples and 0 for padding rows.

        Raises:
            PluginError: If the loss is no scalar tensor.
        """
        model = self.model
        model.gradient.zero_()
        extra = None
        if work.extra is not None and minibatch.extra is not None:
            ones = torch.ones(len(minibatch.extra.rows), device=mask.device)
            extra = self._batch(work.extra.data, minibatch.extra, ones, work.task)
        batch = self._batch(self._data, minibatch, mask, work.task, extra)
        with model.arithmetic(partial(training_context, self._protocol.precision, model.vector.device)):
            loss = objective.loss(model, batch, objective.context)
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            got = f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise PluginError(f"the loss must be a scalar tensor, got {got}")
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.clear_untrained()
        with torch.no_grad():
            objective.gradient(model.gradient, model, objective.context)
        self.optimiser.clear_untrained()
        return loss.detach().float()

    def _batch(
        self, data: DeviceData, minibatch: Minibatch, mask: torch.Tensor, task: Task, extra: Batch | None = None
    ) -> Batch:
        rows = minibatch.rows
        inputs = data.augmented(rows, minibatch.draws) if self._protocol.augment else data.plain(rows)
        memo = None if data.memo is None else data.memo[rows]
        return Batch(inputs, data.labels[rows], mask, task, memo, extra, self._protocol)

    def _captured_step(self, objective: Objective, work: Work, minibatch: Minibatch) -> CapturedStep | None:
        """Returns the captured step for this work, making it if there is none; `None` where it cannot be captured."""
        if self._captured is not None and self._captured.fits(work, objective.context):
            self._captured.bind(objective.context)
            return self._captured
        if not self._pads and len(minibatch.rows) < work.batch_size:
            return None
        self._captured = None  # frees its graph first
        captured = CapturedStep(self, objective, work, minibatch)
        try:
            captured.capture(minibatch)
            self._captured = captured
        except CaptureError as error:
            self._capture = False
            self.notes.append(f"local steps are not captured in a CUDA graph: {error}")
        return self._captured

    def _one_pass(self, work: Work, random: np.random.Generator) -> list[Minibatch]:
        """Draws the order of one pass and its augmentation, and cuts both into minibatches."""
        spans = batch_spans(len(work.index), work.batch_size, bool(self.model.batch_norms))
        own = _cut(_shuffled(work.index, len(work.index), random), self._data, spans, random)
        if work.extra is None:
            return own
        data, draws = work.extra.data, work.extra.random
        if not len(data):
            raise ValueError("there are no samples to replay: return None instead of an empty set")
        rows = _shuffled(torch.arange(len(data), device=work.index.device), len(own) * work.batch_size, draws)
        replayed = _cut(rows, data, batch_spans(len(rows), work.batch_size, False), draws)
        return [Minibatch(one.rows, one.draws, extra) for one, extra in zip(own, replayed, strict=True)]


class CaptureError(RuntimeError):
    """The step cannot be captured."""


class CapturedStep:
    """A step that reads its minibatch and its context from buffers; made for one client, it may serve others.

    Attributes:
        total: Sum of the losses since it was last set to zero.
    """

    def __init__(self, trainer: Trainer, objective: Objective, work: Work, minibatch: Minibatch) -> None:
        self._trainer, self._work = trainer, work
        self._minibatch = _buffers(minibatch, work.batch_size)
        self._mask = torch.ones(work.batch_size, device=work.index.device)
        self._context = {name: value.clone() for name, value in objective.context.items()}
        self._objective = replace(objective, context=self._context)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._key = self._key_of(work, self._context)
        self.total = torch.zeros((), device=work.index.device)

    def fits(self, work: Work, context: Context) -> bool:
        """Returns whether these buffers serve another client: the same task, batch size, pieces, replay and context."""
        return self._key_of(work, context) == self._key

    def _key_of(self, work: Work, context: Context) -> tuple[object, ...]:
        shapes = {name: (value.shape, value.dtype) for name, value in context.items()}
        replayed = None if work.extra is None else work.extra.data
        return work.task, work.batch_size, self._trainer.optimiser, replayed, shapes

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
        model, optimiser = self._trainer.model, self._trainer.optimiser
        before, counters = model.vector.clone(), model.read_counters()
        moments = optimiser.moments() if self._work.done else []
        try:
            self(minibatch)
            expected = model.gradient.clone()
            self._graph = self._captured()
            model.load(before, counters)
            optimiser.restore(moments)
            self(minibatch)
            self._check(expected)
        except CaptureError:
            raise
        except RuntimeError as error:
            raise CaptureError(str(error).strip().splitlines()[0]) from error
        finally:
            model.load(before, counters)
            optimiser.restore(moments)
            self.total.zero_()

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """Warms the step up on a side stream and captures it.

        A step that waits for the device is refused before the capture: one that fails leaves torch's generator of
        random numbers in a state in which dropout raises an error.
        """
        main = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(main)
        try:
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self._once()
                torch.cuda.set_sync_debug_mode("error")
                self._once()
        finally:  # after an error too: the main stream restores the model, and must not overtake the steps made here
            torch.cuda.set_sync_debug_mode("default")
            main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._once()
        return graph

    def _once(self) -> None:
        loss = self._trainer.gradient(self._objective, self._work, self._minibatch, self._mask)
        self._trainer.optimiser.step()
        self.total += loss

    def _check(self, expected: torch.Tensor) -> None:
        """Compares gradients, unless dropout makes two runs of the same step differ by design."""
        modules = self._trainer.model.network.modules()
        if any(isinstance(module, nn.Dropout) and module.p > 0 for module in modules):
            return
        difference = relative_difference(self._trainer.model.gradient, expected)
        if not difference < _TOLERANCE:
            raise CaptureError(f"the captured gradient differs from the plain one by {difference:.1e} (relative)")


def _buffers(minibatch: Minibatch, size: int) -> Minibatch:
    """Returns a minibatch of `size` samples to copy others into."""
    draws = {name: value.new_zeros(size, *value.shape[1:]) for name, value in minibatch.draws.items()}
    extra = None if minibatch.extra is None else _buffers(minibatch.extra, size)
    return Minibatch(minibatch.rows.new_zeros(size), draws, extra)


def _fill(buffers: Minibatch, minibatch: Minibatch) -> None:
    """Copies a minibatch into the first rows of the buffers and repeats its first sample in the rest."""
    pairs = [(buffers.rows, minibatch.rows), *((own, minibatch.draws[name]) for name, own in buffers.draws.items())]
    for buffer, values in pairs:
        buffer[: len(values)].copy_(values)
        buffer[len(values) :].copy_(values[:1].expand(len(buffer) - len(values), *values.shape[1:]))
    if buffers.extra is not None and minibatch.extra is not None:
        _fill(buffers.extra, minibatch.extra)


def _shuffled(index: torch.Tensor, count: int, random: np.random.Generator) -> torch.Tensor:
    """Returns `count` entries of `index` in random order, each once before any is used again."""
    orders = [random.permutation(len(index)) for _ in range(-(-count // len(index)))]
    return index[torch.from_numpy(np.concatenate(orders)[:count]).to(index.device)]


def _cut(rows: torch.Tensor, data: DeviceData, spans: Sequence[slice], random: np.random.Generator) -> list[Minibatch]:
    """Draws the augmentation of the samples at `rows` and cuts them into minibatches."""
    draws = data.draw(len(rows), random)
    return [Minibatch(rows[span], {name: value[span] for name, value in draws.items()}) for span in spans]
