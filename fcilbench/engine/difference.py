"""How far apart two ways to the same tensor may be."""

from __future__ import annotations

import torch

REORDERED = {"fp32": 1e-3, "bf16": 5e-2}
"""Relative difference that arithmetic in another order may make, by precision."""


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns `||found - expected|| / ||expected||` in float32, NaN if either has one; waits for the device.

    Example:
        >>> relative_difference(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]))
        0.20000000298023224
    """
    wanted = expected.float()
    return float((found.float() - wanted).norm() / wanted.norm().clamp(min=1e-12))
