"""Which samples a client trains on in each of its steps, and with which random numbers; drawn before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fcilbench.api.task import Task
from fcilbench.engine.data import DeviceData
from fcilbench.engine.step import Draws


@dataclass(frozen=True)
class Work:
    """What one client trains on in one round.

    Attributes:
        index: Positions of its samples, int64 `[n]` on the device, n > 0.
        task: The current task.
        epochs: Number of passes E.
        batch_size: Samples per step; the last step of a pass takes what is left.
    """

    index: torch.Tensor
    task: Task
    epochs: int
    batch_size: int

    @property
    def pass_steps(self) -> int:
        """Steps of one pass, `ceil(n / batch_size)`."""
        return -(-len(self.index) // self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of the whole round."""
        return self.epochs * self.pass_steps


@dataclass(frozen=True)
class Lot:
    """The samples of one step: their positions int64 `[n]` and the random numbers of their augmentation."""

    rows: torch.Tensor
    draws: Draws


def pass_order(work: Work, data: DeviceData, random: np.random.Generator) -> tuple[torch.Tensor, Draws]:
    """Draws the order of one pass, int64 `[n]`, and the random numbers of its samples in this order."""
    count = len(work.index)
    order = work.index[torch.from_numpy(random.permutation(count)).to(work.index.device)]
    return order, data.draw(count, random)


def one_pass(work: Work, data: DeviceData, random: np.random.Generator) -> list[Lot]:
    """Draws one pass and cuts it into steps."""
    order, draws = pass_order(work, data, random)
    spans = [slice(start, start + work.batch_size) for start in range(0, len(order), work.batch_size)]
    return [Lot(order[span], {name: value[span] for name, value in draws.items()}) for span in spans]


@dataclass(frozen=True)
class Timetable:
    """Everything that a stack of clients does in a round, laid out before it begins: S steps of K clients.

    A lot that is shorter than B repeats its first sample, and so does a client that has finished; both are masked out.

    Attributes:
        rows: Positions, int64 `[S, K, B]`.
        draws: Random numbers of the augmentation by name, each `[S, K, B, ...]`.
        mask: float32 `[S, K, B]`, 1 for a sample.
        share: What a step's loss counts in the client's mean over its last pass, float32 `[S, K]`.
        active: Number of clients that still train in each step; they are the first ones.
        widths: Samples of the longest lot of each step.
    """

    rows: torch.Tensor
    draws: Draws
    mask: torch.Tensor
    share: torch.Tensor
    active: tuple[int, ...]
    widths: tuple[int, ...]


def timetable(works: Sequence[Work], data: DeviceData, randoms: Sequence[np.random.Generator]) -> Timetable:
    """Draws all passes of several clients, each from its own stream.

    Args:
        works: Clients with most steps first, of one task and batch size.
        data: Training samples.
        randoms: Each client's stream of this round.
    """
    steps, clients, width = works[0].steps, len(works), works[0].batch_size
    device = works[0].index.device
    rows = torch.empty(steps, clients, width, dtype=torch.int64, device=device)
    draws: dict[str, torch.Tensor] = {}
    mask = torch.zeros(steps, clients, width, device=device)
    share = torch.zeros(steps, clients, device=device)
    for k, (work, random) in enumerate(zip(works, randoms, strict=True)):
        rows[:, k] = work.index[0]
        length = work.pass_steps
        for start in range(0, work.steps, length):
            span = slice(start, start + length)
            order, numbers = pass_order(work, data, random)
            rows[span, k] = _by_step(order, width)
            for name, values in numbers.items():
                if name not in draws:
                    draws[name] = values.new_zeros(steps, clients, width, *values.shape[1:])
                draws[name][span, k] = _by_step(values, width)
            mask[span, k] = 1.0
            mask[span.stop - 1, k, len(order) - (length - 1) * width :] = 0.0
        share[work.steps - length : work.steps, k] = 1.0 / length
    active = tuple(sum(work.steps > number for work in works) for number in range(steps))
    widths = tuple(max(_lot(work, number) for work in works[:count]) for number, count in enumerate(active))
    return Timetable(rows, draws, mask, share, active, widths)


def _lot(work: Work, number: int) -> int:
    """Returns the samples of a client's step."""
    return min(work.batch_size, len(work.index) - number % work.pass_steps * work.batch_size)


def _by_step(values: torch.Tensor, width: int) -> torch.Tensor:
    """Cuts `[n, ...]` into steps `[S, width, ...]`; what the last one lacks repeats its first entry."""
    steps = -(-len(values) // width)
    missing = steps * width - len(values)
    filler = values[(steps - 1) * width].expand(missing, *values.shape[1:])
    return torch.cat([values, filler]).view(steps, width, *values.shape[1:])
