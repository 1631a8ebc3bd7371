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


def one_pass(work: Work, data: DeviceData, random: np.random.Generator) -> list[Lot]:
    """Draws the order of one pass and its random numbers, and cuts both into steps."""
    count = len(work.index)
    order = work.index[torch.from_numpy(random.permutation(count)).to(work.index.device)]
    draws = data.draw(count, random)
    spans = [slice(start, min(start + work.batch_size, count)) for start in range(0, count, work.batch_size)]
    return [Lot(order[span], {name: value[span] for name, value in draws.items()}) for span in spans]


def side_by_side(lots: Sequence[Lot]) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    """Pads the lots of several clients to the longest one.

    Padding repeats a lot's first sample and is masked out.

    Returns:
        Positions `[K, B]`, random numbers by name, each `[K, B, ...]`, and the mask float32 `[K, B]`.
    """
    width = max(len(lot.rows) for lot in lots)
    mask = torch.zeros(len(lots), width, device=lots[0].rows.device)
    for row, lot in zip(mask, lots, strict=True):
        row[: len(lot.rows)] = 1.0
    rows = torch.stack([_padded(lot.rows, width) for lot in lots])
    names = lots[0].draws
    return rows, {name: torch.stack([_padded(lot.draws[name], width) for lot in lots]) for name in names}, mask


def _padded(values: torch.Tensor, width: int) -> torch.Tensor:
    missing = width - len(values)
    return torch.cat([values, values[:1].expand(missing, *values.shape[1:])]) if missing else values
