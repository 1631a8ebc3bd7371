"""Local training of one client: E epochs of steps on the flat model, without a synchronisation inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np
import torch

from fcilbench.engine.capture import CapturedStep, CaptureError
from fcilbench.engine.data import DeviceData
from fcilbench.engine.model import FlatModel
from fcilbench.engine.step import Extra, LocalStep, Minibatch, Objective, Work, batch_spans
from fcilbench.spec.protocol import Protocol

__all__ = ["Extra", "Objective", "Trainer", "Work"]


class Trainer:
    """Trains the flat model in place on a client's samples.

    Steps are captured in a CUDA graph where `capture` asks for it and the device can. `rates` are factors of the
    learning rate by patterns of piece names, of which the first that matches counts.

    Attributes:
        notes: What the user should know, e.g. that a step could not be captured and is run plainly.
    """

    def __init__(
        self,
        model: FlatModel,
        data: DeviceData,
        protocol: Protocol,
        capture: bool = False,
        rates: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._data, self._model = data, model
        self._step = LocalStep(model, data, protocol, rates)
        self._capture = capture and model.vector.device.type == "cuda"
        # Padding rows would enter BatchNorm's statistics, so such a model's short batches are run as they are.
        self._pads = model.layout.buffers.start == model.layout.buffers.stop and not model.batch_norms
        self._captured: CapturedStep | None = None
        self.notes: list[str] = []

    def train(self, objective: Objective, work: Work, random: np.random.Generator) -> torch.Tensor:
        """Runs E passes over a client's samples, in `batch_spans`; returns the mean loss of the last pass.

        Raises:
            ValueError: If the work trains no parameter, or replays from no samples.
        """
        self._step.begin(work)
        self._model.network.train()
        if 1 in (len(work.index), work.batch_size):  # one sample has no batch statistics: the running ones are used
            for norm in self._model.batch_norms:
                norm.eval()
        with self._untrained_frozen():
            return self._run(objective, work, random)

    def _run(self, objective: Objective, work: Work, random: np.random.Generator) -> torch.Tensor:
        captured, optimiser, number = None, self._step.optimiser, 0
        total = torch.zeros((), device=work.index.device)
        for _ in range(work.epochs):
            if number == work.steps:
                break
            minibatches = _one_pass(work, self._data, random, bool(self._model.batch_norms))
            minibatches = minibatches if work.steps is None else minibatches[: work.steps - number]
            if self._capture and captured is None:
                captured = self._captured_step(objective, work, minibatches[0])
            total.zero_()
            for minibatch in minibatches:
                optimiser.set_rate(number)
                number += 1
                if captured is not None and (self._pads or len(minibatch.rows) == work.batch_size):
                    captured(minibatch)
                    continue
                mask = torch.ones(len(minibatch.rows), device=minibatch.rows.device)
                total += self._step.gradient(objective, work, minibatch, mask)
                optimiser.step()
            if captured is not None:
                total += captured.total
                captured.total.zero_()
        return total / len(minibatches)

    @contextmanager
    def _untrained_frozen(self) -> Iterator[None]:
        """Leaves the parameters that are not trained out of the backward pass."""
        network = self._model.network
        parameters = [network.get_parameter(piece.name) for piece in self._step.optimiser.untrained]
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)

    def _captured_step(self, objective: Objective, work: Work, minibatch: Minibatch) -> CapturedStep | None:
        """Returns the captured step for this work, making it if there is none; `None` where it cannot be captured."""
        if self._captured is not None and self._captured.fits(work, objective.context):
            self._captured.bind(objective.context)
            return self._captured
        if not self._pads and len(minibatch.rows) < work.batch_size:
            return None
        self._captured = None  # frees its graph first
        captured = CapturedStep(self._step, objective, work, minibatch)
        try:
            captured.capture(minibatch)
            self._captured = captured
        except CaptureError as error:
            self._capture = False
            self.notes.append(f"local steps are not captured in a CUDA graph: {error}")
        return self._captured


def _one_pass(work: Work, data: DeviceData, random: np.random.Generator, batch_statistics: bool) -> list[Minibatch]:
    """Draws the order of one pass and its augmentation, and cuts both into minibatches."""
    spans = batch_spans(len(work.index), work.batch_size, batch_statistics)
    own = _cut(_shuffled(work.index, len(work.index), random), data, spans, random)
    if work.extra is None:
        return own
    if not len(work.extra.data):
        raise ValueError("there are no samples to replay: return None instead of an empty set")
    kept = torch.arange(len(work.extra.data), device=work.index.device)
    rows = _shuffled(kept, len(own) * work.batch_size, work.extra.random)
    replayed = _cut(rows, work.extra.data, batch_spans(len(rows), work.batch_size, False), work.extra.random)
    return [Minibatch(one.rows, one.draws, extra) for one, extra in zip(own, replayed, strict=True)]


def _shuffled(index: torch.Tensor, count: int, random: np.random.Generator) -> torch.Tensor:
    """Returns `count` entries of `index` in random order, each once before any is used again."""
    orders = [random.permutation(len(index)) for _ in range(-(-count // len(index)))]
    return index[torch.from_numpy(np.concatenate(orders)[:count]).to(index.device)]


def _cut(rows: torch.Tensor, data: DeviceData, spans: Iterable[slice], random: np.random.Generator) -> list[Minibatch]:
    """Draws the augmentation of the samples at `rows` and cuts them into minibatches."""
    draws = data.draw(len(rows), random)
    return [Minibatch(rows[span], {name: value[span] for name, value in draws.items()}) for span in spans]
