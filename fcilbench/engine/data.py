"""What the trainer and the evaluation need of a split on the device, whatever its modality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch


class DeviceData(Protocol):
    """All samples of a split on the device.

    Attributes:
        labels: Internal labels int64 `[n]`.
        memo: What the method's query returned for each sample, `[n, ...]`; `None` without a query.
    """

    labels: torch.Tensor
    memo: torch.Tensor | None

    @property
    def augments(self) -> bool:
        """Whether training inputs differ from test inputs."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def draw(self, count: int, random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Draws the random numbers for `count` training inputs, by name, each `[count, ...]`."""

    def plain(self, index: torch.Tensor) -> torch.Tensor:
        """Returns the test inputs of the samples at `index`."""

    def augmented(self, index: torch.Tensor, draws: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the training inputs of the samples at `index`."""

    def denormalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns inputs with the normalisation taken back; texts as they are."""

    def token_mask(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Returns which tokens `[B, length]` of texts are no padding; `None` for images."""
