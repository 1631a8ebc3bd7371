"""What a client's local steps train on: its own samples in a drawn order, replayed ones, and ones that it kept.

All random numbers are drawn here, before the steps, so that a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fcilbench.api import Memory, Task
from fcilbench.engine.data import DeviceData, Draws


@dataclass(frozen=True)
class Extra:
    """Samples that a client mixes into its training (`Aggregator.replay`), and the stream that draws of them."""

    data: DeviceData
    random: np.random.Generator


@dataclass(frozen=True)
class Drawn:
    """Samples that a client keeps, of which each step draws some without replacement (`Aggregator.client_replay`).

    Attributes:
        size: Samples of a draw; a smaller memory gives all that it has.
        randoms: The stream of each of a step's independent draws.
    """

    memory: Memory
    size: int
    randoms: tuple[np.random.Generator, ...]

    @property
    def count(self) -> int:
        """Number of samples that a draw really has."""
        return min(self.size, len(self.memory))


@dataclass(frozen=True)
class Work:
    """What one client trains on in one round, and which pieces of the model.

    Attributes:
        index: Positions of its samples, int64 `[n]` on the device, n > 0.
        batch_size: Samples per step; the last step of a pass takes what is left.
        train: Patterns of the names of the pieces that the optimiser moves (`Wire.train`).
        extra: Samples of which each step gets `batch_size` as `batch.extra`, or `None`.
        memory: Kept samples of which each step gets some as `batch.memories`, or `None`.
        numbers: How many uniform numbers each sample of a step gets, and the stream that draws them, or `None`.
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
    memory: Drawn | None = None
    numbers: tuple[int, np.random.Generator] | None = None
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
    """Positions `[n]` of the samples of one step, the random numbers of their augmentation, and the replayed ones.

    Attributes:
        fields: What the client keeps with each sample of a memory, and as `random` the numbers of the loss.
        mask: Of a memory's samples in the buffers of a captured step, 0 for padding; `None` if there is none.
        step: Number of the step in the visit, an int64 scalar on the device.
    """

    rows: torch.Tensor
    draws: Draws
    extra: Minibatch | None = None
    memories: tuple[Minibatch, ...] = ()
    fields: Draws = field(default_factory=dict)
    mask: torch.Tensor | None = None
    step: torch.Tensor | None = None


def one_pass(
    work: Work, data: DeviceData, random: np.random.Generator, batch_statistics: bool, first: int = 0
) -> list[Minibatch]:
    """Draws the order of one pass over a client's samples and their augmentation, and cuts both into minibatches.

    `data` are those of its own samples, and `first` is the number of the first step. See `batch_spans`.
    """
    samples, device = len(work.index), work.index.device
    spans = batch_spans(samples, work.batch_size, batch_statistics)
    own = _cut(_shuffled(work.index, samples, random), data, spans, random)
    own = [
        replace(one, step=step)
        for one, step in zip(own, torch.arange(first, first + len(own), device=device), strict=True)
    ]
    if work.numbers is not None:
        numbers = _uniform(samples, *work.numbers, device)
        own = [replace(one, fields={"random": numbers[span]}) for one, span in zip(own, spans, strict=True)]
    if work.memory is not None:
        draws = [_remembered(work.memory, data, len(own), stream) for stream in work.memory.randoms]
        own = [replace(one, memories=memories) for one, memories in zip(own, zip(*draws, strict=True), strict=True)]
    if work.extra is not None:
        replayed = _replayed(work.extra, len(own), work.batch_size, device)
        own = [replace(one, extra=extra) for one, extra in zip(own, replayed, strict=True)]
    return own


def _remembered(drawn: Drawn, data: DeviceData, steps: int, random: np.random.Generator) -> list[Minibatch]:
    """Draws samples of a memory for each step, none of them twice in a step."""
    memory, count = drawn.memory, drawn.count
    chosen = np.concatenate([random.choice(len(memory), count, replace=False) for _ in range(steps)])
    index = torch.from_numpy(chosen).to(memory.positions.device)
    spans = [slice(start, start + count) for start in range(0, len(chosen), count)]
    minibatches = _cut(memory.positions[index], data, spans, random)
    fields = [{name: values[index[span]] for name, values in memory.fields.items()} for span in spans]
    return [replace(one, fields=kept) for one, kept in zip(minibatches, fields, strict=True)]


def _replayed(extra: Extra, steps: int, size: int, device: torch.device) -> list[Minibatch]:
    """Draws `size` replayed samples for each step, each of them once before any is used again."""
    if not len(extra.data):
        raise ValueError("there are no samples to replay: return None instead of an empty set")
    rows = _shuffled(torch.arange(len(extra.data), device=device), steps * size, extra.random)
    return _cut(rows, extra.data, batch_spans(len(rows), size, False), extra.random)


def buffers_of(minibatch: Minibatch, size: int, remembered: int) -> Minibatch:
    """Returns a minibatch of `size` samples, and of as many `remembered` ones a draw, to copy others into."""

    def empty(source: Minibatch, size: int) -> Minibatch:
        draws, fields = (
            {name: value.new_zeros(size, *value.shape[1:]) for name, value in values.items()}
            for values in (source.draws, source.fields)
        )
        return Minibatch(source.rows.new_zeros(size), draws, fields=fields)

    masks = torch.ones(len(minibatch.memories), remembered, device=minibatch.rows.device)
    memories = [replace(empty(m, remembered), mask=mask) for m, mask in zip(minibatch.memories, masks, strict=True)]
    extra = None if minibatch.extra is None else empty(minibatch.extra, size)
    step = None if minibatch.step is None else minibatch.step.clone()
    return replace(empty(minibatch, size), extra=extra, memories=tuple(memories), step=step)


def fill(buffers: Minibatch, minibatch: Minibatch) -> None:
    """Copies a minibatch into the first rows of the buffers, and repeats its first sample in the rest."""
    pairs = [(buffers.rows, minibatch.rows), *((own, minibatch.draws[name]) for name, own in buffers.draws.items())]
    pairs += [(own, minibatch.fields[name]) for name, own in buffers.fields.items()]
    for buffer, values in pairs:
        buffer[: len(values)].copy_(values)
        buffer[len(values) :].copy_(values[:1].expand(len(buffer) - len(values), *values.shape[1:]))
    if buffers.mask is not None:
        buffers.mask[: len(minibatch.rows)] = 1.0
        buffers.mask[len(minibatch.rows) :] = 0.0
    if buffers.step is not None and minibatch.step is not None:
        buffers.step.copy_(minibatch.step)
    if buffers.extra is not None and minibatch.extra is not None:
        fill(buffers.extra, minibatch.extra)
    for own, memory in zip(buffers.memories, minibatch.memories, strict=True):
        fill(own, memory)


def _shuffled(index: torch.Tensor, count: int, random: np.random.Generator) -> torch.Tensor:
    """Returns `count` entries of `index` in random order, each once before any is used again."""
    orders = [random.permutation(len(index)) for _ in range(-(-count // len(index)))]
    return index[torch.from_numpy(np.concatenate(orders)[:count]).to(index.device)]


def _uniform(samples: int, count: int, random: np.random.Generator, device: torch.device) -> torch.Tensor:
    """Draws numbers in (0, 1), float32 `[samples, count]`: odd multiples of 2^-24, which are exact, never 0 or 1."""
    drawn = random.integers(0, 2**23, (samples, count), dtype=np.int64)
    return torch.from_numpy(((2 * drawn + 1) / 2**24).astype(np.float32)).to(device)


def _cut(rows: torch.Tensor, data: DeviceData, spans: Sequence[slice], random: np.random.Generator) -> list[Minibatch]:
    """Draws the augmentation of the samples at `rows` and cuts them into minibatches."""
    draws = data.draw(len(rows), random)
    return [Minibatch(rows[span], {name: value[span] for name, value in draws.items()}) for span in spans]
