"""Importance of samples by the norms of their gradients along a short training run, and the choice of the largest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

Gradients = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Maps parameters `[P]` to the norm of each sample's gradient `[n]` and the sum of these gradients `[P]`."""


def gradient_importance(
    gradients: Gradients, start: torch.Tensor, steps: int, *, rate: float, pull: float, summed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns I_i = sum_p G_p(i) / p of each sample, float64 `[n]`, and the parameters v_s `[P]` after the last step.

    From v_0 = w (`start`), p = 1 .. s (`steps`): G_p(i) = ||grad l_i(v_{p-1})||, from `gradients`, and
    v_p = v_{p-1} - rate (g + pull (v_{p-1} - w)), where g is the sum of the samples' gradients (`summed`) or their
    mean.
    """
    v, scores = start.clone(), torch.zeros((), dtype=torch.float64, device=start.device)
    for p in range(1, steps + 1):
        norms, total = gradients(v)
        scores = scores + norms.to(torch.float64) / p
        v = v - rate * ((total if summed else total / len(norms)) + pull * (v - start))
    return scores, v


def head_gradients(features: torch.Tensor, labels: torch.Tensor, classes: int, seen: int) -> Gradients:
    """Returns the gradients of the cross-entropy by a linear head alone, in closed form, float64.

    With features f `[n, F]`, labels `[n]` and the softmax p over the first `seen` of all C classes, a sample's gradient
    is (p - onehot) (f, 1)^T: its norm is ||p - onehot|| sqrt(||f||^2 + 1). Parameters are weight `[C, F]`, then bias
    `[C]`, flattened.
    """
    wide, onehot = features.to(torch.float64), F.one_hot(labels, seen).to(torch.float64)
    lengths = (wide.square().sum(dim=1) + 1).sqrt()

    def gradients(head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight, bias = torch.split(head.to(torch.float64), [classes * wide.shape[1], classes])
        logits = wide @ weight.view(classes, -1)[:seen].T + bias[:seen]
        apart = logits.softmax(dim=1) - onehot
        total = torch.zeros(classes, wide.shape[1] + 1, dtype=torch.float64, device=wide.device)
        total[:seen] = torch.cat([apart.T @ wide, apart.sum(dim=0)[:, None]], dim=1)
        return apart.norm(dim=1) * lengths, torch.cat([total[:, :-1].flatten(), total[:, -1]])

    return gradients


def largest(scores: torch.Tensor, quotas: Sequence[tuple[torch.Tensor, int]]) -> list[int]:
    """Returns the rows of the largest scores, in ascending order; ties go to the lower row.

    `quotas` are groups of rows, each with the number of rows that it keeps.
    """
    kept: list[int] = []
    for rows, count in quotas:
        order = torch.sort(scores[rows], descending=True, stable=True).indices
        kept += rows[order[:count]].tolist()
    return sorted(kept)
