"""Refits rows of a linear head on features, by SGD with a cosine schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

Draw = Callable[[np.random.Generator], tuple[torch.Tensor, torch.Tensor]]
"""Draws the features `[n, F]` and head rows `[n]` of one epoch."""


@dataclass(frozen=True)
class Refit:
    """How a head is refitted.

    Attributes:
        epochs: Passes, each over features drawn anew.
        batch_size: Features per step.
        lr: Learning rate at the start; it falls as half a cosine over the epochs.
        momentum: Momentum of SGD.
        logit_norm: Divides logits by `logit_norm` times their L2 norm; `None` leaves them alone.
    """

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    logit_norm: float | None


def refit_head(
    weight: torch.Tensor, bias: torch.Tensor, draw: Draw, how: Refit, random: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Minimises the cross-entropy of some head rows among each other.

    Args:
        weight: The rows to refit, `[a, F]`; left unchanged.
        bias: Their biases, `[a]`; left unchanged.
        draw: Draws one epoch.
        how: Epochs, steps, rates.
        random: For the draws and their order.

    Returns:
        The refitted rows and biases, and the mean loss of the last epoch.
    """
    w, b = weight.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_()
    optimiser = torch.optim.SGD([w, b], lr=how.lr, momentum=how.momentum)
    last = torch.zeros(())
    with torch.enable_grad():
        for epoch in range(how.epochs):
            for group in optimiser.param_groups:
                group["lr"] = 0.5 * how.lr * (1 + math.cos(math.pi * epoch / how.epochs))
            features, labels = draw(random)
            order = torch.from_numpy(random.permutation(len(labels))).to(labels.device)
            losses = []
            for rows in torch.split(order, how.batch_size):
                loss = F.cross_entropy(_logits(features[rows], w, b, how.logit_norm), labels[rows])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                losses.append(loss.detach())
            last = torch.stack(losses).mean()
    return w.detach(), b.detach(), float(last)


def _logits(features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, norm: float | None) -> torch.Tensor:
    logits = features @ weight.T + bias
    if norm is None:
        return logits
    size = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
    scaled: torch.Tensor = logits / (norm * size.clamp(min=1e-7))
    return scaled
