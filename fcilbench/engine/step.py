"""One local step on the flat model: augment, forward, backward, gradient hook, decay, optimiser. Nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fcilbench.api.client import Batch, Context, Net
from fcilbench.api.schedule import Task
from fcilbench.engine.data import DeviceData, Draws
from fcilbench.engine.model import FlatModel
from fcilbench.engine.optimiser import LocalOptimiser
from fcilbench.engine.precision import training_context
from fcilbench.spec.protocol import Protocol

Loss = Callable[[Net, Batch, Context], torch.Tensor]
GradientHook = Callable[[torch.Tensor, Net, Context], None]


@dataclass(frozen=True)
class Objective:
    """What a client optimises: the method's hooks `loss` and `gradient`, and the context that both read."""

    loss: Loss
    gradient: GradientHook
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
        task: The current task.
        epochs: Number of passes E.
        batch_size: Samples per step; the last step of a pass takes what is left.
        train: Patterns of the names of the pieces that the optimiser moves (`Wire.train`).
        extra: Samples of which each step gets `batch_size` as `batch.extra`, or `None`.
        steps: Number of steps after which a slow client stops; `None` for all steps of all passes.
    """

    index: torch.Tensor
    task: Task
    epochs: int
    batch_size: int
    train: tuple[str, ...] = ("*",)
    extra: Extra | None = None
    steps: int | None = None


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


class LocalStep:
    """The step on the resident model, with the optimiser of the pieces that the current work trains."""

    def __init__(self, model: FlatModel, data: DeviceData, protocol: Protocol, rates: Mapping[str, float]) -> None:
        self.model = model
        self._data, self._protocol, self._rates = data, protocol, rates
        self._train: tuple[str, ...] = ("*",)
        self.optimiser = LocalOptimiser(model, protocol, self._train, rates)

    def begin(self, work: Work) -> None:
        """Prepares the optimiser for a client's round."""
        if work.train != self._train:
            self._train = work.train
            self.optimiser = LocalOptimiser(self.model, self._protocol, work.train, self._rates)
        spans = batch_spans(len(work.index), work.batch_size, bool(self.model.batch_norms))
        self.optimiser.reset(work.task, work.epochs * len(spans))

    def gradient(self, objective: Objective, work: Work, minibatch: Minibatch, mask: torch.Tensor) -> torch.Tensor:
        """Fills the flat gradient for one minibatch, gradient hook included, and returns the detached float32 loss.

        `mask` `[B]` is 1 for samples and 0 for padding rows.
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
