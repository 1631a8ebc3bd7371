"""Re-Fed: Li et al. 2024, "Towards Efficient Replay in Federated Incremental Learning" (CVPR)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import model_validator

from fcilbench.api import Client, Field, Memory, Server, Space, quotas
from fcilbench.plugins.aggregators.er import Replay, ReplayParams
from fcilbench.vectors.importance import Gradients, gradient_importance, head_gradients, largest

_LARGE = 20_000_000
"""Parameters above which `importance: auto` takes the head's gradient alone."""


class ReFed(Replay):
    """Re-Fed: experience replay of the samples whose gradients are largest along a personalised informative model.

    The loss is that of `Replay`. At its first visit of a task a client scores T, its memory and its samples of the
    tasks that have ended since its last visit. The informative model v starts at the received model w `[P]` and takes s
    steps of rate eta, p = 1 .. s, on all of T:

        G_p(i) = ||grad l(v_{p-1}; x_i, y_i)||,   I_i = sum_p G_p(i) / p,
        v_p = v_{p-1} - eta (mean_i grad l(v_{p-1}; x_i, y_i) + q (v_{p-1} - w)),   q = (1 - lambda) / (2 lambda),

    with l the cross-entropy over the classes of the tasks that have ended, in eval mode and without augmentation. The M
    samples of largest I stay. lambda = 1 is a local model, lambda towards 0 the global one.

    With `importance: head` v differs from w in the head alone, and G is the norm of the head's gradient,
    ||p - onehot|| sqrt(||f||^2 + 1): one forward pass serves all steps. It is what `auto` takes above 20 million
    parameters, and a warning says so.
    """

    version = "2"  # a larger default of eta
    card: ClassVar = {
        "family": "memory",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "samples of earlier tasks with their labels",
        "source": "Li et al. 2024, CVPR",
    }
    kit_params: ClassVar[Mapping[str, Any]] = {"steps": 2}

    class Params(ReplayParams):
        """Hyperparameters of Re-Fed."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"step": "sum", "eta": 0.01, "importance": "full", "ace": False}
        }

        steps: int = Field(
            5,
            ge=1,
            description="steps s of the informative model",
            source="a re-implementation",
            space=Space(low=1, high=10),
        )
        lambda_pim: float = Field(
            0.5,
            gt=0,
            le=1,
            description="how personal the informative model is: 1 is local, towards 0 it stays at the global model",
            source="a re-implementation",
            space=Space(low=0.1, high=0.9),
        )
        eta: float = Field(
            0.2,
            gt=0,
            description="learning rate of the informative model",
            source="a re-implementation: 0.01 in each of the 19 batches of 16 that 300 samples have; another: 0.001",
            space=Space(low=1e-2, high=0.4, log=True),
        )
        step: Literal["mean", "sum"] = Field("mean", description="whether its steps take the mean gradient or the sum")
        squared: bool = Field(False, description="whether G is the squared norm")
        importance: Literal["auto", "full", "head"] = Field(
            "auto", description="gradients of all parameters, or of the head alone; auto: of all up to 20 million"
        )
        quota: Literal["none", "balanced"] = Field(
            "none", description="whether the largest of all are kept, or the largest of each class, in equal numbers"
        )

        @property
        def pull(self) -> float:
            """q, the strength that pulls the informative model back to the global one."""
            return (1.0 - self.lambda_pim) / (2.0 * self.lambda_pim)

        @model_validator(mode="after")
        def _stable(self) -> Self:
            if self.eta * self.pull >= 2:
                raise ValueError(
                    f"lambda_pim = {self.lambda_pim} with eta = {self.eta} makes the informative model diverge: "
                    "eta (1 - lambda_pim) / (2 lambda_pim) must be below 2"
                )
            return self

    params: Params

    def begin(self, server: Server) -> None:
        """Tells if samples are scored by the head alone although that was not asked for."""
        if self.params.importance == "auto" and self._head_alone(server.layout.trainable.stop):
            server.warn("re-fed: the backbone is large, so samples are scored by the gradient of the head alone")

    def _head_alone(self, parameters: int) -> bool:
        return self.params.importance == "head" or (self.params.importance == "auto" and parameters > _LARGE)

    def begin_client_task(self, client: Client) -> None:
        """Scores what the client has of earlier tasks, and keeps the most important samples."""
        candidates, size = client.memory.join(client.past), self.params.memory
        if not len(client.past):
            return
        if len(candidates) > size:
            scores, labels = self._scores(client, candidates), candidates.labels
            groups = [(torch.arange(len(labels), device=labels.device), size)]
            if self.params.quota == "balanced":
                rows = [(labels == label).nonzero()[:, 0] for label in sorted(set(labels.tolist()))]
                groups = list(zip(rows, quotas([len(own) for own in rows], size), strict=True))
            candidates = candidates.take(largest(scores, groups))
        client.memory = candidates

    def _scores(self, client: Client, samples: Memory) -> torch.Tensor:
        """Returns the importance of each sample, float64 `[m]`."""
        params, layout, seen = self.params, client.net.layout, client.task.offset
        start = client.received_model[layout.trainable]
        if self._head_alone(layout.trainable.stop):
            features = torch.cat([client.net.features(batch.inputs) for batch in client.batches(samples)])
            gradients = head_gradients(features, samples.labels, layout.classes, seen)
            start = start[layout.head].to(torch.float64)
        else:
            gradients = _full_gradients(client, samples, seen)

        def measured(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            norms, total = gradients(v)
            return norms.square() if params.squared else norms, total

        return gradient_importance(
            measured, start, params.steps, rate=params.eta, pull=params.pull, summed=params.step == "sum"
        )[0]


def _full_gradients(client: Client, samples: Memory, seen: int) -> Gradients:
    """Returns the gradients of the samples by all trained parameters, one backward pass for each sample."""
    rest = client.received_model[client.net.layout.trainable.stop :]

    def gradients(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        norms, total = [], torch.zeros_like(v)
        leaf = v.clone().requires_grad_()
        for batch in client.batches(samples):
            for row in range(len(batch.labels)):
                one = slice(row, row + 1)
                with torch.enable_grad():
                    logits = client.net.under(torch.cat([leaf, rest])).logits(batch.inputs[one])
                    loss = F.cross_entropy(logits[:, :seen].float(), batch.labels[one])
                (own,) = torch.autograd.grad(loss, leaf)
                norms.append(own.norm())
                total += own
        return torch.stack(norms), total

    return gradients
