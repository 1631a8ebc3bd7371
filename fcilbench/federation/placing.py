"""Puts the samples of a split on the device, in the form that the backbone reads."""

from __future__ import annotations

import numpy as np
import torch

from fcilbench.api.backbone import Backbone, TextBackbone
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.message import Message
from fcilbench.engine.data import DeviceData, DeviceImages, DeviceTokens


def place(
    backbone: Backbone,
    samples: Samples,
    augmentation: Augmentation,
    device: torch.device,
    channels_last: bool = False,
) -> DeviceData:
    """Returns the samples on the device: images as uint8, texts as token ids.

    Args:
        backbone: Whose input size or tokenizer is used.
        samples: With internal labels.
        augmentation: What training batches of images go through.
        device: Where they go.
        channels_last: Whether the backbone takes images in this memory layout; a CPU then gives it.
    """
    if isinstance(backbone, TextBackbone):
        return DeviceTokens(backbone.encode([str(text) for text in samples.inputs]), samples.labels, device)
    layout = torch.channels_last if channels_last and device.type == "cpu" else torch.contiguous_format
    return DeviceImages(samples, backbone.image_input(), augmentation, device, layout)


def as_message(samples: Samples) -> Message:
    """Returns samples as a message: images as uint8, texts as UTF-8 bytes with their lengths, labels as int64."""
    if samples.inputs.dtype == object:
        texts = [str(text).encode() for text in samples.inputs]
        content = torch.from_numpy(np.frombuffer(b"".join(texts), dtype=np.uint8).copy())
        inputs = {"replay/texts": content, "replay/lengths": torch.tensor([len(text) for text in texts])}
    else:
        inputs = {"replay/images": torch.from_numpy(np.ascontiguousarray(samples.inputs))}
    return {**inputs, "replay/labels": torch.from_numpy(samples.labels)}
