"""Arithmetic of forward and backward passes. Parameters, updates and all server mathematics stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Literal

import torch

from fcilbench.engine.attention import plain_attention

Precision = Literal["fp32", "bf16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context in which a model is run: bfloat16 autocast, or nothing."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def training_context(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context of a forward pass that a backward pass follows.

    On a CPU the fused attention's backward in bfloat16 makes a small ViT's step 1.7 times as long, so attention is
    unfused there (`benchmarks/results/cpu-2026-11-28.md`; in float32 it makes no difference). GPUs choose for
    themselves.
    """
    stack = ExitStack()
    stack.enter_context(autocast(precision, device))
    if precision == "bf16" and device.type == "cpu":
        stack.enter_context(plain_attention())
    return stack


def forbid_tf32() -> None:
    """Makes float32 mean float32 on a GPU too; by default cuDNN would round convolutions' inputs to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
