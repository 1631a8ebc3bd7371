"""Diagonal Fisher information of a network: mean squares of per-sample gradients (Matena and Raffel 2022).

For sample x and class c, with p the softmax over the task's slice and g_c the gradient of log p_c, one sample adds
terms `weight * g_c^2`:

    exact       every c of the task, weight p_c
    sampled     one c drawn from p, weight 1
    empirical   c = y, weight 1
    label_prob  c = y, weight p_y

Linear layers, convolutions, layer norms, token embeddings and parameters that are broadcast over the samples are done
in one pass over a batch (`engine/sample_gradients.py`), all other parameters by `vmap(grad)`, which is a second pass.
Both are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fcilbench.api.client import Batch, FisherKind
from fcilbench.engine.sample_gradients import SampleGradients

_BUDGET = 1 << 26
"""Entries of per-sample gradients that may exist at once (256 MB in float32)."""


@torch.no_grad()  # what needs a gradient says so; nothing else may keep a graph
def fisher_diagonal(
    network: nn.Module, names: Sequence[str], batches: Iterable[tuple[Batch, torch.Tensor]], kind: FisherKind
) -> torch.Tensor:
    """Returns the mean diagonal Fisher of some parameters over samples, exactly 0 where no gradient flows.

    Squares are taken of per-sample gradients in the parameters' dtype, and summed over batches in float64. The network
    must treat the samples of a batch apart (it is in eval mode) and keep them along the first dimension.

    Args:
        network: Maps inputs to logits over all classes; in eval mode.
        names: Parameters in the order of the result.
        batches: Batches, each with uniform numbers `[B]` in [0, 1) that draw the labels of `sampled`.
        kind: Which Fisher.

    Returns:
        `[P]`, of the parameters' dtype.

    Raises:
        ValueError: If the network is in training mode, or there is no sample.
    """
    if network.training:
        raise ValueError("the Fisher is taken in eval mode; the network is in training mode")
    totals = {name: torch.zeros_like(network.get_parameter(name), dtype=torch.float64) for name in names}
    samples = 0.0
    recorded = SampleGradients(network, totals, _BUDGET)
    for batch, uniform in batches:
        with torch.enable_grad():
            log_p = F.log_softmax(recorded.run(batch.inputs)[:, batch.task.classes], dim=1)
        targets, weights = _terms(kind, log_p.detach().exp(), batch.task.local(batch.labels), uniform)
        weights = weights * batch.mask[:, None]
        for column in range(targets.shape[1]):
            with torch.enable_grad():
                objective = log_p.gather(1, targets[:, column : column + 1]).sum()
            recorded.add_squares(objective, totals, weights[:, column])
            rest = [name for name in names if name not in recorded.covered]
            if rest:
                for name, squares in _squares(network, rest, batch, targets[:, column], weights[:, column]):
                    totals[name] += squares
        samples += float(batch.mask.sum())
    if samples == 0.0:
        raise ValueError("the Fisher of no samples is not defined")
    mean = torch.cat([total.div_(samples).flatten() for total in totals.values()])
    return mean.to(network.get_parameter(names[0]).dtype)


def _terms(
    kind: FisherKind, probabilities: torch.Tensor, labels: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the classes and weights of each sample's terms, both `[B, m]`."""
    if kind == "exact":
        every = torch.arange(probabilities.shape[1], device=probabilities.device)
        return every.expand(len(probabilities), -1), probabilities
    if kind == "sampled":
        reached = probabilities.double().cumsum(dim=1) <= uniform[:, None]
        labels = reached.sum(dim=1).clamp(max=probabilities.shape[1] - 1)
    targets = labels[:, None]
    return targets, probabilities.gather(1, targets) if kind == "label_prob" else torch.ones_like(probabilities[:, :1])


def _squares(
    network: nn.Module, names: Sequence[str], batch: Batch, targets: torch.Tensor, weights: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterates over the named parameters' parts of `sum_i weights_i * (gradient of log p of targets_i)^2`, by vmap."""
    parameters = {name: network.get_parameter(name).detach() for name in names}

    def log_p_of_one(parameters: dict[str, torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = functional_call(network, parameters, (x[None],))
        return F.log_softmax(logits[:, batch.task.classes], dim=1)[0].gather(0, target[None])[0]

    per_sample = vmap(grad(log_p_of_one), in_dims=(None, 0, 0))
    step = max(1, _BUDGET // sum(value.numel() for value in parameters.values()))
    for start in range(0, len(targets), step):
        part = slice(start, start + step)
        # The plain kernel of attention is the one with a batching rule on every device.
        with sdpa_kernel(SDPBackend.MATH):
            gradients = per_sample(parameters, batch.inputs[part], targets[part])
        for name, gradient in gradients.items():
            yield name, (weights[part] @ gradient.flatten(1).square()).view(gradient.shape[1:])
