"""Diagonal Fisher information of a network: mean squares of per-sample gradients (Matena and Raffel 2022).

For sample x and class c, with p the softmax over the task's slice and g_c the gradient of log p_c, one sample adds
terms `weight * g_c^2`:

    exact       every c of the task, weight p_c
    sampled     one c drawn from p, weight 1
    empirical   c = y, weight 1
    label_prob  c = y, weight p_y
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vjp, vmap

from fcilbench.api import Batch
from fcilbench.api.client import FisherKind
from fcilbench.engine.precision import unfused_attention

_ENTRIES = {"cpu": 1 << 25, "cuda": 1 << 31}
"""Most entries of per-sample gradients at a time, or those of one sample: 128 MB of float32 on a CPU, 8 GB on a GPU.

Fewer need less memory and more time (`benchmarks/results/passes-2026-11-30.md`).
"""


@torch.no_grad()
def fisher_diagonal(
    network: nn.Module, names: Sequence[str], batches: Iterable[tuple[Batch, torch.Tensor]], kind: FisherKind
) -> torch.Tensor:
    """Returns the mean diagonal Fisher `[P]` of some parameters over samples, exactly 0 where no gradient flows.

    Squares of per-sample gradients have the parameters' dtype and are summed over batches in float64. No sample may
    influence another of its batch, and `torch.func.vmap` must be able to run the network.

    The parameters are `names`, in the order of the result. Each batch comes with uniform numbers `[B]` in [0, 1), which
    draw the labels of `sampled`. The network is in eval mode.
    """
    parameters = {name: network.get_parameter(name).detach() for name in names}
    samples, first, sizes = 0.0, parameters[names[0]], [value.numel() for value in parameters.values()]
    total = torch.zeros(sum(sizes), dtype=torch.float64, device=first.device)
    places = dict(zip(names, torch.split(total, sizes), strict=True))
    entries = _ENTRIES.get(first.device.type, _ENTRIES["cuda"])
    for batch, uniform in batches:
        columns = [batch.inputs, batch.task.local(batch.labels), uniform, batch.mask]
        columns += [] if batch.memo is None else [batch.memo]
        terms = batch.task.size if kind == "exact" else 1
        step = max(1, entries // (terms * len(total)))
        gradients = vmap(_per_sample(network, parameters, batch.task.classes, kind))
        for part in zip(*(torch.split(column, step) for column in columns), strict=True):
            with unfused_attention():  # the fused kernels have no batching rule
                found = gradients(*part)
            for term in found:
                for name in names:
                    places[name] += term.pop(name).square().sum(dim=0).flatten()
            del found, term  # before the next ones are made
        samples += float(batch.mask.sum())
    return total.div_(samples).to(first.dtype)


def _per_sample(
    network: nn.Module, parameters: dict[str, torch.Tensor], classes: slice, kind: FisherKind
) -> Callable[..., tuple[dict[str, torch.Tensor], ...]]:
    """Returns the function from one sample to the gradients of `sqrt(weight) log p_c` of its terms."""

    def gradients(
        x: torch.Tensor,
        label: torch.Tensor,
        uniform: torch.Tensor,
        mask: torch.Tensor,
        memo: torch.Tensor | None = None,
    ) -> tuple[dict[str, torch.Tensor], ...]:
        inputs = [x[None]] if memo is None else [x[None], "logits", {"memo": memo[None]}]

        def log_p(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            return F.log_softmax(functional_call(network, parameters, tuple(inputs))[0, classes], dim=0)

        found, pull, *_ = vjp(log_p, parameters)
        return tuple(pull(row)[0] for row in _weights(kind, found.exp(), label, uniform).mul(mask).sqrt())

    return gradients


def _weights(kind: FisherKind, p: torch.Tensor, label: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Returns the weights of one sample's classes, `[m, c]`: each row is one term, 0 but at its class."""
    if kind == "exact":
        return torch.diag(p)
    if kind == "sampled":
        label = (p.double().cumsum(dim=0) <= uniform).sum().clamp(max=len(p) - 1)
    row = (torch.arange(len(p), device=p.device) == label).to(p)
    return (row * p if kind == "label_prob" else row)[None]
