"""What a data set consists of: inputs with labels, in two splits, and how training images are varied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fcilbench.errors import DataError


@dataclass(frozen=True)
class Samples:
    """Inputs with their labels.

    Attributes:
        inputs: Vision: uint8 `[n, height, width, channels]`. Text: `str` objects `[n]`.
        labels: int64 `[n]`, index into the corpus' class names.
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise DataError(f"{len(self.inputs)} inputs but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: npt.NDArray[np.int64]) -> Samples:
        """Returns the samples at `index`, in that order."""
        return Samples(self.inputs[index], self.labels[index])


@dataclass(frozen=True)
class Corpus:
    """Train and test samples of one data set.

    Attributes:
        train: Training samples.
        test: Test samples.
        class_names: Name of each label.
        outside: Test inputs that belong to no class, for out-of-scope detection; `None` where there are none.
    """

    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    outside: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Augmentation:
    """Training augmentation of images at their native size, before they are resized for the backbone.

    Attributes:
        crop_padding: Zero padding on each side before a random crop back to size; 0 is off.
        flip: Random horizontal flip with probability one half.
    """

    crop_padding: int = 0
    flip: bool = False
