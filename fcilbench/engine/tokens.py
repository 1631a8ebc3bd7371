"""Tokenised texts on the device; there is no augmentation of text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fcilbench.api.backbone import TokenIds
from fcilbench.api.schedule import Indices

_STEP = 8


class DeviceTokens:
    """All texts of a split on the device.

    Args:
        tokens: Token ids with their lengths.
        labels: Internal labels `[n]`.
        device: Where they live.

    Attributes:
        ids: int32 `[n, length]`.
        labels: int64 `[n]`.
        memo: Answers of the method's query, `[n, ...]`, or `None`.
    """

    def __init__(self, tokens: TokenIds, labels: Indices, device: torch.device) -> None:
        if len(tokens.ids) != len(labels):
            raise ValueError(f"{len(tokens.ids)} texts but {len(labels)} labels")
        self.ids = torch.from_numpy(tokens.ids).to(device)
        self.labels = torch.from_numpy(labels.astype(np.int64)).to(device)
        self.memo: torch.Tensor | None = None
        self._pad = tokens.pad
        self._lengths = torch.from_numpy(tokens.lengths)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def augments(self) -> bool:
        """No."""
        return False

    def draw(self, count: int, random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Draws nothing."""
        return {}

    def plain(self, index: torch.Tensor) -> torch.Tensor:
        """Returns token ids int64 `[B, length]`.

        On a CPU columns that are padding for the whole batch are cut off (to a multiple of 8); on a GPU the shape stays
        the same, since looking at the lengths would wait for the device. Padding changes no logit beyond rounding.
        """
        rows = self.ids[index]
        if rows.device.type == "cpu" and len(index):
            longest = int(self._lengths[index].max())
            rows = rows[:, : -(-longest // _STEP) * _STEP]
        return rows.long()

    def augmented(self, index: torch.Tensor, draws: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns what `plain` returns."""
        return self.plain(index)

    def denormalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the token ids as they are."""
        return inputs

    def token_mask(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns which tokens `[B, length]` are no padding."""
        return inputs != self._pad
