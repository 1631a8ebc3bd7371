"""Attention as two matrix products and a softmax: on a CPU the faster form of a training step, and one that batches.

torch's fused kernel has a slow backward pass in bfloat16 there and no batching rule; its reference kernel also checks
every row for masks that hide it whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


@contextmanager
def plain_attention() -> Iterator[None]:
    """Runs attention unfused: without a mask, dropout or grouped heads as `plain`, else in torch's reference kernel."""
    with sdpa_kernel(SDPBackend.MATH), _Unfused():
        yield


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Returns softmax(scale Q K^T) V (Vaswani et al. 2017, equation 1), `[..., L, Ev]`.

    Args:
        query: `[..., L, E]`.
        key: `[..., S, E]`.
        value: `[..., S, Ev]`.
        scale: Of the products; by default `1 / sqrt(E)`.
    """
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return ((query * factor) @ key.transpose(-2, -1)).softmax(dim=-1) @ value


class _Unfused(TorchFunctionMode):
    """Answers the calls of torch's attention that `plain` covers."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func is F.scaled_dot_product_attention and len(args) == 3 and _bare(options):
            return plain(*args, scale=options.get("scale"))
        return func(*args, **options)


def _bare(options: dict[str, Any]) -> bool:
    """Whether there is no mask, no dropout and one key for each query head."""
    hidden = options.get("attn_mask") is not None or options.get("is_causal", False)
    return not (hidden or options.get("dropout_p", 0.0) or options.get("enable_gqa", False))
