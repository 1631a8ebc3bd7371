"""Squares of per-sample parameter gradients of one layer, from its inputs and the gradients of its outputs.

For sample i with positions t (tokens, patches), inputs a_it and output gradients g_it, and a weight w_i per sample:

    linear      W: sum_i w_i (sum_t g_it a_it^T)^2                       b: sum_i w_i (sum_t g_it)^2
    layer norm  gamma: sum_i w_i (sum_t g_it * a_it normalised)^2        beta: as b
    embedding   row v: sum_i w_i (sum over t with token v of g_it)^2

No function forms more than `budget` entries at once, or one sample's gradient if that is more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

Call = tuple[torch.Tensor, torch.Tensor]
"""A layer's input of one forward pass, samples first, and the gradient of its output."""


def linear_squares(
    layer: nn.Linear, calls: Sequence[Call], weights: torch.Tensor, budget: int
) -> dict[str, torch.Tensor]:
    """Returns the squares of a linear layer that ran once, by parameter."""
    ((inputs, gradient),) = calls
    a = inputs.reshape(len(weights), -1, layer.in_features)
    g = gradient.reshape(len(weights), -1, layer.out_features)
    squares = {"weight": _products(a, g, weights, budget)}
    if layer.bias is not None:
        squares["bias"] = weights @ g.sum(dim=1).square()
    return squares


def norm_squares(
    layer: nn.LayerNorm,
    calls: Sequence[Call],
    weights: torch.Tensor,
    _budget: int,
) -> dict[str, torch.Tensor]:
    """Returns the squares of a layer norm over the last dimension that ran once, by parameter."""
    ((inputs, gradient),) = calls
    size = layer.normalized_shape[0]
    g = gradient.reshape(len(weights), -1, size)
    a = F.layer_norm(inputs, layer.normalized_shape, eps=layer.eps).reshape(len(weights), -1, size)
    squares = {"weight": weights @ (g * a).sum(dim=1).square()}
    if layer.bias is not None:
        squares["bias"] = weights @ g.sum(dim=1).square()
    return squares


def embedding_squares(
    layer: nn.Embedding, calls: Sequence[Call], weights: torch.Tensor, budget: int
) -> dict[str, torch.Tensor]:
    """Returns the squares of an embedding that ran once or several times, each on ids `[B, T]`.

    A sample's gradient has as many non-zero rows as it has distinct tokens, so the table-sized gradient of a sample
    never exists: equal tokens of a sample are added up, and the sum's square goes to the token's row.
    """
    ids = torch.cat([own for own, _ in calls], dim=1)
    g = torch.cat([own for _, own in calls], dim=1)
    total = torch.zeros_like(layer.weight)
    positions = torch.arange(ids.shape[1], device=ids.device)
    step = max(1, budget // max(g[0].numel(), ids.shape[1] ** 2))
    for part in (slice(start, start + step) for start in range(0, len(ids), step)):
        equal = ids[part, :, None] == ids[part, None, :]
        # The first of equal tokens stands for all of them; gradients never flow into the padding row.
        first = (equal & (positions[:, None] > positions)).sum(dim=2) == 0
        if layer.padding_idx is not None:
            first &= ids[part] != layer.padding_idx
        squares = (equal.to(g.dtype) @ g[part]).square_() * (first * weights[part, None])[:, :, None]
        total.index_put_((ids[part].flatten(),), squares.flatten(0, 1), accumulate=True)
    return {"weight": total}


def _products(a: torch.Tensor, g: torch.Tensor, weights: torch.Tensor, budget: int) -> torch.Tensor:
    """Returns `sum_i w_i (sum_t g_it a_it^T)^2`, `[out, in]`, from inputs `[B, T, in]` and gradients `[B, T, out]`."""
    if a.shape[1] == 1:
        return (g[:, 0].square() * weights[:, None]).T @ a[:, 0].square()
    total = torch.zeros(g.shape[2], a.shape[2], dtype=a.dtype, device=a.device)
    step = max(1, budget // total.numel())
    for start in range(0, len(weights), step):
        part = slice(start, start + step)
        gradients = torch.einsum("bto,bti->boi", g[part], a[part]).square_()
        total += torch.einsum("b,boi->oi", weights[part], gradients)
    return total
