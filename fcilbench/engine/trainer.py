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

from fcilbench.api import Batch, Context, Net, Protocol, Task
from fcilbench.engine.data import DeviceData
from fcilbench.engine.minibatches import Minibatch, Work, batch_spans, buffers_of, fill, one_pass
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


class Trainer:
    """Trains the flat model in place on a client's samples.

    Steps are captured in a CUDA graph if `capture` asks for it and the device can. `rates` are factors of the learning
    rate by patterns of piece names, of which the first that matches counts. `tasks` are those of the stream.

    Attributes:
        optimiser: The optimiser of the pieces that the current work trains.
        slices: Of each class, the first class of its task and the one after its last, int64 `[C, 2]`.
        notes: What the user should know, e.g. why steps are not captured.
    """

    def __init__(
        self,
        model: FlatModel,
        data: DeviceData,
        protocol: Protocol,
        capture: bool = False,
        rates: Mapping[str, float] = MappingProxyType({}),
        *,
        tasks: Sequence[Task] = (),
    ) -> None:
        slices = torch.zeros(model.layout.classes, 2, dtype=torch.int64)
        for task in tasks:
            slices[task.classes] = torch.tensor([task.offset, task.seen])
        self.slices = slices.to(model.vector.device)
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
        sizes = {len(work.index), work.batch_size, work.memory.count if work.memory else 0}
        if 1 in sizes:  # one sample has no batch statistics: the running ones are used
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
            minibatches = one_pass(work, self._data, random, bool(self.model.batch_norms), number)
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
        self.model.task = work.task
        if work.train != self._train:
            self._train = work.train
            self.optimiser = LocalOptimiser(self.model, self._protocol, work.train, self._rates)
        spans = batch_spans(len(work.index), work.batch_size, bool(self.model.batch_norms))
        self.optimiser.reset(work.task, (work.total or work.epochs) * len(spans), keep=work.done > 0)
        return work.done * len(spans)

    def remembered(self, work: Work) -> int:
        """Returns how many samples of a memory a captured step has room for; a smaller memory is padded if it can."""
        if work.memory is None:
            return 0
        return work.memory.size if self._pads else work.memory.count

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
        batch = self._batch(work, minibatch, mask)
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

    def _batch(self, work: Work, minibatch: Minibatch, mask: torch.Tensor) -> Batch:
        """Returns the client's own samples of a step, with the replayed and the remembered ones."""
        extra = None
        if work.extra is not None and minibatch.extra is not None:
            extra = self._replayed(work.extra.data, minibatch.extra, work.task)
        memories = tuple(self._replayed(self._data, memory, work.task) for memory in minibatch.memories)
        random = minibatch.fields.get("random")
        own = self._samples(self._data, minibatch, mask, work.task)
        return replace(own, extra=extra, memories=memories, random=random, step=minibatch.step)

    def _replayed(self, data: DeviceData, minibatch: Minibatch, task: Task) -> Batch:
        mask = minibatch.mask
        if mask is None:
            mask = torch.ones(len(minibatch.rows), device=minibatch.rows.device)
        batch = self._samples(data, minibatch, mask, task)
        return replace(batch, fields=minibatch.fields, slices=self.slices[batch.labels])

    def _samples(self, data: DeviceData, minibatch: Minibatch, mask: torch.Tensor, task: Task) -> Batch:
        rows = minibatch.rows
        inputs = data.augmented(rows, minibatch.draws) if self._protocol.augment else data.plain(rows)
        memo = None if data.memo is None else data.memo[rows]
        return Batch(inputs, data.labels[rows], mask, task, memo, protocol=self._protocol)

    def _captured_step(self, objective: Objective, work: Work, minibatch: Minibatch) -> CapturedStep | None:
        """Returns the captured step for this work, making it if there is none; `None` where it cannot be captured."""
        if self._captured is not None and self._captured.fits(work, objective.context):
            self._captured.bind(objective.context)
            return self._captured
        if not self._pads and len(minibatch.rows) != work.batch_size:
            return None
        self._captured = None  # frees its graph first
        captured = CapturedStep(self, objective, work, minibatch)
        device = self.model.vector.device
        try:
            # Else dropout would depend on whose step is captured, which after a resume is another client's.
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                captured.capture(minibatch)
            self._captured = captured
        except CaptureError as error:
            self._capture = False
            self.notes.append(f"local steps are not captured in a CUDA graph: {error}")
        return self._captured


class CaptureError(RuntimeError):
    """The step cannot be captured."""


class CapturedStep:
    """A step that reads its minibatch and its context from buffers; made for one client, it may serve others.

    Attributes:
        total: Sum of the losses since it was last set to zero.
    """

    def __init__(self, trainer: Trainer, objective: Objective, work: Work, minibatch: Minibatch) -> None:
        self._trainer, self._work = trainer, work
        self._minibatch = buffers_of(minibatch, work.batch_size, trainer.remembered(work))
        self._mask = torch.ones(work.batch_size, device=work.index.device)
        self._context = {name: value.clone() for name, value in objective.context.items()}
        self._objective = replace(objective, context=self._context)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._key = self._key_of(work, self._context)
        self.total = torch.zeros((), device=work.index.device)

    def fits(self, work: Work, context: Context) -> bool:
        """Returns whether these buffers serve another client: same task, batch, pieces, replay, memory and context."""
        return self._key_of(work, context) == self._key

    def _key_of(self, work: Work, context: Context) -> tuple[object, ...]:
        shapes = {name: (value.shape, value.dtype) for name, value in context.items()}
        replayed = None if work.extra is None else work.extra.data
        kept = None
        if work.memory is not None:
            fields = {name: (value.shape[1:], value.dtype) for name, value in work.memory.memory.fields.items()}
            kept = (len(work.memory.randoms), self._trainer.remembered(work), fields)
        numbers = None if work.numbers is None else work.numbers[0]
        return work.task, work.batch_size, self._trainer.optimiser, replayed, kept, numbers, shapes

    def bind(self, context: Context) -> None:
        """Copies a client's context into the buffers."""
        for name, value in context.items():
            self._context[name].copy_(value)

    def __call__(self, minibatch: Minibatch) -> None:
        """Runs one step on a minibatch of at most `batch_size` samples; its loss is added to `total`."""
        count = len(minibatch.rows)
        fill(self._minibatch, minibatch)
        self._mask[:count] = 1.0
        self._mask[count:] = 0.0
        if self._graph is None:
            self._once()
        else:
            self._graph.replay()

    def capture(self, minibatch: Minibatch) -> None:
        """Captures the step, checks the captured gradient against the plain one, and leaves the model as it was.

        A step that draws random numbers, as dropout and stochastic depth do, has another gradient each time, which is
        not checked.

        Raises:
            CaptureError: If the objective cannot be captured, or its captured gradient differs from the plain one.
        """
        model, optimiser = self._trainer.model, self._trainer.optimiser
        before, counters = model.vector.clone(), model.read_counters()
        moments = optimiser.moments() if self._work.done else []
        try:
            random = self._random_state()
            self(minibatch)
            draws = not torch.equal(random, self._random_state())
            expected = model.gradient.clone()
            self._graph = self._captured()
            model.load(before, counters)
            optimiser.restore(moments)
            self(minibatch)
            if not draws:
                self._check(expected)
        except CaptureError:
            raise
        except RuntimeError as error:
            raise CaptureError(str(error).strip().splitlines()[0]) from error
        finally:
            model.load(before, counters)
            optimiser.restore(moments)
            self.total.zero_()

    def _random_state(self) -> torch.Tensor:
        """Returns the state of torch's generator on the model's device, which every draw changes."""
        device = self._trainer.model.vector.device
        return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

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
        """Compares the captured gradient with the plain one."""
        difference = relative_difference(self._trainer.model.gradient, expected)
        if not difference < _TOLERANCE:
            raise CaptureError(f"the captured gradient differs from the plain one by {difference:.1e} (relative)")
