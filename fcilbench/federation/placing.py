"""Puts the samples of a split on the device, in the form that the backbone reads."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from fcilbench.api.backbone import Backbone, TextBackbone
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.schedule import Indices
from fcilbench.engine.data import DeviceData
from fcilbench.engine.images import DeviceImages
from fcilbench.engine.tokens import DeviceTokens


def place(
    backbone: Backbone,
    inputs: npt.NDArray[Any],
    labels: Indices,
    augmentation: Augmentation,
    device: torch.device,
) -> DeviceData:
    """Returns the samples on the device: images as uint8, texts as token ids.

    Args:
        backbone: Whose input size or tokenizer is used.
        inputs: As in `fcilbench.api.dataset.Samples`.
        labels: Internal labels `[n]`.
        augmentation: What training batches of images go through.
        device: Where they go.
    """
    if isinstance(backbone, TextBackbone):
        return DeviceTokens(backbone.encode([str(text) for text in inputs]), labels, device)
    return DeviceImages(Samples(inputs, labels), backbone.image_input(), augmentation, device)
