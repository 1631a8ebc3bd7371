"""All samples of a split on the device: images as uint8, augmented and resized there in batches, token ids, arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F

from fcilbench.api import Augmentation, ImageInput, Samples, TokenIds, Transform
from fcilbench.api.schedule import Indices
from fcilbench.errors import UsageError

Draws = Mapping[str, torch.Tensor]
"""Random numbers of a batch's augmentation by name, each `[B, ...]`."""

_STEP = 8
"""On a CPU, texts are cut to a multiple of this many tokens."""


class DeviceData(ABC):
    """All samples of a split on the device; without augmentation unless a subclass has one.

    Attributes:
        labels: Internal labels int64 `[n]`.
        memo: What the method's query returned for each sample, `[n, ...]`; `None` without a query.
        sample_bytes: Size of each raw sample without its label, int64 `[n]` on the CPU: what it takes to keep it.
    """

    sample_bytes: torch.Tensor

    def __init__(self, labels: Indices, device: torch.device) -> None:
        self.labels = torch.from_numpy(labels.astype(np.int64)).to(device)
        self.memo: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def plain(self, index: torch.Tensor) -> torch.Tensor:
        """Returns the test inputs of the samples at `index`."""

    def draw(self, count: int, random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Draws the random numbers for `count` training inputs, by name, each `[count, ...]`."""
        return {}

    def augmented(self, index: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Returns the training inputs of the samples at `index`."""
        return self.plain(index)

    def token_mask(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Returns which tokens `[B, length]` of texts are no padding; `None` for anything else."""
        return None


class DeviceImages(DeviceData):
    """All images of a split on the device, as uint8 `pixels` `[n, C, H, W]`; inputs are made in batches.

    Args:
        samples: uint8 `[n, H, W, C]` with internal labels.

    Raises:
        UsageError: If the images have other channels than the backbone reads.
    """

    def __init__(
        self,
        samples: Samples,
        spec: ImageInput,
        augmentation: Augmentation,
        device: torch.device,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        super().__init__(samples.labels, device)
        self.spec, self.augmentation, self._layout = spec, augmentation, layout
        pixels = torch.from_numpy(np.ascontiguousarray(samples.inputs.transpose(0, 3, 1, 2)))
        if pixels.dtype != torch.uint8:
            raise ValueError(f"images must be uint8, got {pixels.dtype}")
        if pixels.shape[1] not in (1, spec.channels):
            raise UsageError(
                f"images have {pixels.shape[1]} channels, the backbone wants {spec.channels}",
                hint=f"choose a backbone that reads {pixels.shape[1]} channels, or another data set",
            )
        self.pixels = pixels.to(device)
        self.sample_bytes = torch.full((len(pixels),), pixels[:1].numel() * pixels.element_size())
        self._mean = torch.tensor(spec.mean, device=device).view(1, -1, 1, 1)
        self._std = torch.tensor(spec.std, device=device).view(1, -1, 1, 1)

    def draw(self, count: int, random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Draws the random numbers for `count` augmented images, on the CPU so that every device sees the same.

        Returns:
            `top` and `left`: crop offsets int64 `[count]` in `0..2 * padding`; `flip`: bool `[count]`.
        """
        reach = 2 * self.augmentation.crop_padding + 1
        top, left = random.integers(0, reach, size=(2, count))
        flip = random.random(count) < (0.5 if self.augmentation.flip else 0.0)
        draws = {"top": top, "left": left, "flip": flip}
        return {name: torch.from_numpy(values).to(self.pixels.device) for name, values in draws.items()}

    def plain(self, index: torch.Tensor) -> torch.Tensor:
        """Returns test inputs float32 `[B, channels, height, width]` of the images at `index`."""
        return self._finish(self.pixels[index])

    def augmented(self, index: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Returns training inputs float32 `[B, channels, height, width]`: padded crop, flip, resize, normalise."""
        images = self.pixels[index]
        padding = self.augmentation.crop_padding
        height, width = images.shape[2:]
        padded = F.pad(images, (padding, padding, padding, padding))
        rows = torch.arange(height, device=images.device) + draws["top"][:, None]
        columns = torch.arange(width, device=images.device)
        columns = torch.where(draws["flip"][:, None], columns.flip(0), columns) + draws["left"][:, None]
        batch = torch.arange(len(images), device=images.device)[:, None, None]
        # Advanced indices around a slice put the channel last; move it back.
        crops = padded[batch, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        return self._finish(crops)

    def _finish(self, images: torch.Tensor) -> torch.Tensor:
        scaled = images.to(torch.float32) / 255.0
        if scaled.shape[2:] != self.spec.shape:
            # Bicubic overshoots; 8-bit pipelines clamp, and so do we.
            scaled = F.interpolate(scaled, self.spec.shape, mode="bicubic", antialias=True).clamp_(0.0, 1.0)
        normalised = (scaled.expand(-1, self.spec.channels, -1, -1) - self._mean) / self._std
        return normalised.contiguous(memory_format=self._layout)


class DeviceTokens(DeviceData):
    """All texts of a split on the device, as int32 token ids `[n, length]`; they are not augmented.

    `sizes` are the bytes of the raw texts, UTF-8; by default those of their token ids.
    """

    def __init__(
        self, tokens: TokenIds, labels: Indices, device: torch.device, sizes: torch.Tensor | None = None
    ) -> None:
        super().__init__(labels, device)
        if len(tokens.ids) != len(labels):
            raise ValueError(f"{len(tokens.ids)} texts but {len(labels)} labels")
        self._ids = torch.from_numpy(tokens.ids).to(device)
        self._pad = tokens.pad
        self._lengths = torch.from_numpy(tokens.lengths)
        self.sample_bytes = 4 * self._lengths if sizes is None else sizes

    def plain(self, index: torch.Tensor) -> torch.Tensor:
        """Returns token ids int64 `[B, length]`; on a CPU, columns that are padding for the whole batch are cut off.

        On a GPU the shape stays the same, because reading the lengths would wait for the device. Padding changes
        logits by rounding only.
        """
        rows = self._ids[index]
        if rows.device.type == "cpu" and len(index):
            longest = int(self._lengths[index].max())
            rows = rows[:, : -(-longest // _STEP) * _STEP]
        return rows.long()

    def token_mask(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns which tokens `[B, length]` are no padding."""
        return inputs != self._pad


class DeviceArrays(DeviceData):
    """All arrays of a split on the device, in the type that the data set gives them; inputs are made in batches.

    Args:
        samples: Numbers `[n, ...]` with internal labels.
    """

    def __init__(self, samples: Samples, transform: Transform, device: torch.device) -> None:
        super().__init__(samples.labels, device)
        values = torch.from_numpy(np.ascontiguousarray(samples.inputs))
        self._transform, self._values = transform, values.to(device)
        self.sample_bytes = torch.full((len(values),), values[:1].numel() * values.element_size())

    def draw(self, count: int, random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Draws what the data set's transform asks for, on the CPU so that every device sees the same."""
        draws = self._transform.draw(count, random)
        return {name: torch.from_numpy(values).to(self._values.device) for name, values in draws.items()}

    def plain(self, index: torch.Tensor) -> torch.Tensor:
        """Returns test inputs float32 `[B, ...]` of the arrays at `index`."""
        return self._transform.apply(self._values[index].to(torch.float32), {})

    def augmented(self, index: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Returns training inputs float32 `[B, ...]` of the arrays at `index`."""
        return self._transform.apply(self._values[index].to(torch.float32), draws)
