"""Images on the device as uint8, augmented, resized and normalised there in batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from fcilbench.api.backbone import ImageInput
from fcilbench.api.dataset import Augmentation, Samples


class DeviceImages:
    """All images of a split on the device.

    Args:
        samples: uint8 `[n, H, W, C]` with internal labels.
        spec: Size, channels and normalisation that the backbone wants.
        augmentation: What training batches go through.
        device: Where the images live.
        layout: Memory layout of the inputs that it gives.

    Attributes:
        pixels: uint8 `[n, C, H, W]`.
        labels: int64 `[n]`.
        memo: Answers of the method's query, `[n, ...]`, or `None`.
    """

    def __init__(
        self,
        samples: Samples,
        spec: ImageInput,
        augmentation: Augmentation,
        device: torch.device,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.spec, self.augmentation, self._layout = spec, augmentation, layout
        pixels = torch.from_numpy(np.ascontiguousarray(samples.inputs.transpose(0, 3, 1, 2)))
        if pixels.dtype != torch.uint8:
            raise ValueError(f"images must be uint8, got {pixels.dtype}")
        if pixels.shape[1] not in (1, spec.channels):
            raise ValueError(f"images have {pixels.shape[1]} channels, the backbone wants {spec.channels}")
        self.pixels = pixels.to(device)
        self.labels = torch.from_numpy(samples.labels.astype(np.int64)).to(device)
        self.memo: torch.Tensor | None = None
        shape = (1, -1, 1, 1)
        self._mean = torch.tensor(spec.mean, device=device).view(shape)
        self._std = torch.tensor(spec.std, device=device).view(shape)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def augments(self) -> bool:
        """Whether training inputs are cropped or flipped."""
        return self.augmentation.crop_padding > 0 or self.augmentation.flip

    def draw(self, count: int, random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Draws the random numbers for `count` augmented images, on the CPU so that every device sees the same.

        Returns:
            `top` and `left`: crop offsets int64 `[count]` in `0..2 * padding`; `flip`: bool `[count]`.
        """
        reach = 2 * self.augmentation.crop_padding + 1
        top, left = random.integers(0, reach, size=(2, count))
        flip = random.random(count) < (0.5 if self.augmentation.flip else 0.0)
        device = self.pixels.device
        return {"top": _to(top, device), "left": _to(left, device), "flip": _to(flip, device)}

    def plain(self, index: torch.Tensor) -> torch.Tensor:
        """Returns test inputs float32 `[B, channels, size, size]` of the images at `index`."""
        return self._finish(self.pixels[index])

    def augmented(self, index: torch.Tensor, draws: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns training inputs float32 `[B, channels, size, size]`: padded crop, flip, resize, normalise."""
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

    def denormalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns inputs with the normalisation taken back: pixels in [0, 1]."""
        return inputs * self._std + self._mean

    def token_mask(self, inputs: torch.Tensor) -> None:
        """Returns `None`: images have no padding."""

    def _finish(self, images: torch.Tensor) -> torch.Tensor:
        scaled = images.to(torch.float32) / 255.0
        size = self.spec.size
        if scaled.shape[2:] != (size, size):
            # Bicubic overshoots; 8-bit pipelines clamp, and so do we.
            scaled = F.interpolate(scaled, (size, size), mode="bicubic", antialias=True).clamp_(0.0, 1.0)
        normalised = (scaled.expand(-1, self.spec.channels, -1, -1) - self._mean) / self._std
        return normalised.contiguous(memory_format=self._layout)


def _to(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device)
