"""Floating-point operations of a forward pass, counted without weights and without doing them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def image_flops(create: Callable[[], nn.Module], channels: int, size: int) -> float | None:
    """Returns the operations of a model for one image, or `None` if it cannot be built on the meta device.

    Args:
        create: Builds the model, with random weights.
        channels: Channels of its input.
        size: Height and width of its input in pixels.
    """
    try:
        with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
            create().eval()(torch.zeros(1, channels, size, size))
    except Exception:  # an estimate is not worth an error; `build` says what is wrong with a model
        return None
    return float(counter.get_total_flops())


def encoder_flops(layers: int, hidden: int, inner: int, tokens: int) -> float:
    """Returns the operations of a BERT-like encoder for one text: products with weights, and attention.

    Args:
        layers: Number of layers.
        hidden: Size of a token's vector h; queries, keys, values and outputs are h x h.
        inner: Size of the feed-forward layer's middle.
        tokens: Tokens of the text, padding included.
    """
    weights = 4 * hidden**2 + 2 * hidden * inner
    return float(layers * (2 * tokens * weights + 4 * tokens**2 * hidden))
