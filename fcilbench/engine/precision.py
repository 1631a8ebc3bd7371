"""Arithmetic of forward and backward passes. Parameters, updates and all server mathematics stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context in which a model is run: bfloat16 autocast, or nothing."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def forbid_tf32() -> None:
    """Makes float32 mean float32 on a GPU too; by default cuDNN would round convolutions' inputs to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
