"""Which samples a client trains on in each of its steps, and with which random numbers; drawn before it starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fcilbench.api.task import Task
from fcilbench.engine.data import DeviceData
from fcilbench.engine.step import Draws


@dataclass(frozen=True)
class Extra:
    """Samples that a client mixes into its training (`Aggregator.replay`).

    Attributes:
        data: The samples on the device.
        random: Draws a batch of them for each step.
    """

    data: DeviceData
    random: np.random.Generator


@dataclass(frozen=True)
class Work:
    """What one client trains on in one round.

    Attributes:
        index: Positions of its samples, int64 `[n]` on the device, n > 0.
        task: The current task.
        epochs: Number of passes E.
        batch_size: Samples per step; the last step of a pass takes what is left.
        train: Patterns of the names of the pieces that the optimiser moves (`Wire.train`).
        extra: Samples mixed into each step, or `None`.
    """

    index: torch.Tensor
    task: Task
    epochs: int
    batch_size: int
    train: tuple[str, ...] = ("*",)
    extra: Extra | None = None

    @property
    def pass_steps(self) -> int:
        """Steps of one pass, `ceil(n / batch_size)`."""
        return -(-len(self.index) // self.batch_size)


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
