"""Arithmetic of forward and backward passes, and the checks of its results.

Parameters, updates and all server mathematics stay float32; only a model's passes may run in bfloat16. On a CPU,
attention then is two matrix products and a softmax, because torch's fused kernel has a slow backward pass there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

Precision = Literal["fp32", "bf16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context in which a model runs: bfloat16 autocast, or nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Returns a context in which nothing is cast to a lower precision, even within `autocast`."""
    known = torch.amp.is_autocast_available(device.type)  # not on the meta device
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


@contextmanager
def training_context(precision: Precision, device: torch.device) -> Iterator[None]:
    """Runs a forward pass that a backward pass follows.

    On a CPU the fused attention's backward in bfloat16 makes a small ViT's step 1.7 times as long, so attention is
    unfused there (`benchmarks/results/cpu-2026-11-28.md`; in float32 it makes no difference).
    """
    unfused = precision == "bf16" and device.type == "cpu"
    with autocast(precision, device), unfused_attention() if unfused else nullcontext():
        yield


def forbid_tf32() -> None:
    """Makes float32 mean float32 on a GPU too; by default cuDNN would round convolutions' inputs to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@contextmanager
def unfused_attention() -> Iterator[None]:
    """Runs attention as `attention` does or, with a mask, dropout or grouped heads, by torch's reference kernel."""
    with sdpa_kernel(SDPBackend.MATH), _Unfused():
        yield


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Returns softmax(scale Q K^T) V (Vaswani et al. 2017, equation 1); the scale is `1 / sqrt(width)` by default."""
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return ((query * factor) @ key.transpose(-2, -1)).softmax(dim=-1) @ value


class _Unfused(TorchFunctionMode):
    """Replaces the calls of torch's attention that `attention` covers."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        special = any(options.get(name) for name in ("is_causal", "dropout_p", "enable_gqa"))
        plain = not special and options.get("attn_mask") is None
        if func is F.scaled_dot_product_attention and len(args) == 3 and plain:
            return attention(*args, scale=options.get("scale"))
        return func(*args, **options)


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns `||found - expected|| / ||expected||` in float32, NaN if either has one; waits for the device."""
    wanted = expected.float()
    return float((found.float() - wanted).norm() / wanted.norm().clamp(min=1e-12))


def all_finite(values: torch.Tensor) -> bool:
    """Returns whether no entry is NaN or infinite; waits for the device.

    It looks at the least and the largest entry, which are NaN if any entry is: on a CPU 15 times as fast as `isfinite`
    of all entries (`benchmarks/results/cpu-2026-11-28.md`).
    """
    if not values.numel() or not (values.is_floating_point() or values.is_complex()):
        return True
    if values.is_complex():
        values = torch.view_as_real(values)
    return bool(torch.isfinite(torch.stack(torch.aminmax(values))).all())
