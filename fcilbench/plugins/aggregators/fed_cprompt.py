"""Fed-CPrompt: Bagwe et al. 2023, "Contrastive Prompt for Rehearsal-Free Federated Continual Learning".

FL workshop at ICML (arXiv 2307.04869). It adds a contrastive loss to CODA-Prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator

from fcilbench.api import Batch, Context, Field, Net, Server, Space, Updates
from fcilbench.plugins.aggregators.codap import CodaPrompt, piece_name

_PAPER = "Bagwe et al. 2023"


class FedCPrompt(CodaPrompt):
    """Fed-CPrompt: a client's prompts stay close to the received ones and go away from those of earlier tasks.

    CODA-Prompt with L = L_CE + lambda max(D_s - gamma D_old + alpha, 0), the paper's contrastive loss. With
    `c2l: prompt` D_s = ||P - P_s|| and D_old = min_{i < t} ||P - P_i||: P are the prompts of the task's components over
    all blocks, flattened, P_s those that were received and P_i those of an earlier task; keys and attentions are left
    out. With `alpha: auto` alpha = gamma min_i ||P_s - P_i||: the term is then 0 at P_s and, by the triangle
    inequality, nowhere negative, so that the hinge never switches it off. A fixed alpha of at most 1 leaves it off
    until P has moved by half the distance of two tasks' prompts, which is large: new components have norm 1.

    With `c2l: feature` it is that of the authors' code: D_s = sum_b ||f_b - f_b,s||^2 and D_old likewise, of features
    under the received model and under the final model of the task before, summed over the batch. That model is the
    received one without the task's prompts, so nothing more is sent; two more forward passes are needed.

    In the first task there is no D_old. The asynchronous part, clients that are in different tasks, is left out: all
    clients of a phase train one task.

    `cprompt/active` logs, for prompts and a fixed alpha, the share of clients at whose trained prompts the hinge is
    open.
    """

    version = "2"  # a smaller default of lambda_c2l; selectors read features without prompts
    card: ClassVar = {
        "family": "prompts",
        "trained": "prompt components with keys, and the head",
        "travels": "what is trained",
        "memory": "nothing",
        "source": "Bagwe et al. 2023, FL workshop at ICML",
    }

    class Params(CodaPrompt.Params):
        """Hyperparameters of Fed-CPrompt; those of CODA-Prompt, and the contrastive loss."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"c2l": "feature", "lambda_c2l": 1000.0, "gamma": 0.01, "alpha": 0.001}
        }

        c2l: Literal["prompt", "feature"] = Field(
            "prompt", description="what is compared: the task's prompts, or features of a batch", source=_PAPER
        )
        lambda_c2l: float = Field(
            1e-3,
            ge=0,
            description="weight of the contrastive loss; 0: CODA-Prompt",
            source="ours: about the norm of the cross-entropy's gradient by the prompts of a small ViT",
            space=Space(low=1e-5, high=0.1, log=True),
        )
        gamma: float = Field(
            1.0,
            ge=0,
            le=1,
            description="weight of the distance to earlier tasks in it",
            source=_PAPER,
            space=Space(choices=(0.5, 1.0)),
        )
        alpha: float | Literal["auto"] = Field(
            "auto", description="margin; auto: what makes the loss 0 at the received prompts", source="ours"
        )

        @model_validator(mode="after")
        def _a_margin(self) -> Self:
            if self.alpha == "auto" and self.c2l == "feature":
                raise ValueError(
                    "alpha: auto needs c2l: prompt: of squared distances it is no bound; set alpha to 0.001"
                )
            if self.alpha != "auto" and self.alpha < 0:
                raise ValueError("alpha must be at least 0, or auto")
            return self

    params: Params

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns CODA-Prompt's loss plus lambda times the contrastive one."""
        features = self.outputs(net, batch)["features"]
        loss = self._objective(net, batch, features)
        if self.params.lambda_c2l == 0:
            return loss
        own = self._prompts if self.params.c2l == "prompt" else self._features
        return loss + self.params.lambda_c2l * own(net, batch, context["received"], features)

    def _prompts(self, net: Net, batch: Batch, received: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Returns the contrastive loss of the task's prompts."""
        pieces = [net.layout.piece(piece_name(task, "prompts")) for task in range(batch.task.index + 1)]
        *old, base = (received[piece.span] for piece in pieces)
        return contrast(net.piece(pieces[-1].name).flatten(), base, old, self.params.gamma, self.params.alpha)

    def _features(self, net: Net, batch: Batch, received: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Returns the contrastive loss of a batch's features; without padding."""
        vectors = [received]
        if batch.task.index > 0:
            vectors.append(received.clone())
            vectors[1][net.layout.piece(piece_name(batch.task.index, "prompts")).span] = 0.0
        with torch.no_grad():
            others = [self.outputs(net.under(vector), batch)["features"] for vector in vectors]
        squares = [((features - other).square().sum(dim=1) * batch.mask).sum() for other in others]
        assert self.params.alpha != "auto"
        return hinge(squares[0], squares[1:], self.params.gamma, self.params.alpha)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages as CODA-Prompt, and logs for how many clients the hinge is open at their trained prompts."""
        params = self.params
        if params.c2l == "prompt" and params.alpha != "auto":
            *old, own = (server.layout.piece(piece_name(task.index, "prompts")).span for task in server.tasks)
            base, earlier = server.vector[own], [server.vector[span] for span in old]
            found = [contrast(base + row, base, earlier, params.gamma, params.alpha) for row in updates.delta[:, own]]
            server.log("cprompt/active", sum(float(value) > 0 for value in found) / len(found))
        super().aggregate(updates, server)


def contrast(
    own: torch.Tensor,
    received: torch.Tensor,
    old: list[torch.Tensor],
    gamma: float,
    alpha: float | Literal["auto"],
) -> torch.Tensor:
    """Returns max(||P - P_s|| - gamma min_i ||P - P_i|| + alpha, 0) of prompts P, P_s and P_i `[n]`.

    `auto` is gamma min_i ||P_s - P_i||: there is no hinge, since the sum is never negative. The gradient of a norm is 0
    at 0, where every round begins.
    """
    near, far = _distance(own, received), [_distance(own, other) for other in old]
    if alpha != "auto":
        return hinge(near, far, gamma, alpha)
    if not old:
        return near
    margin = torch.stack([_distance(received, other) for other in old]).min()
    return near + gamma * (margin - torch.stack(far).min())


def hinge(near: torch.Tensor, far: list[torch.Tensor], gamma: float, alpha: float) -> torch.Tensor:
    """Returns max(near - gamma min(far) + alpha, 0); without anything far, `near` alone."""
    return (near - gamma * torch.stack(far).min() + alpha).clamp(min=0.0) if far else near


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    distance: torch.Tensor = torch.linalg.vector_norm(one - other)
    return distance
