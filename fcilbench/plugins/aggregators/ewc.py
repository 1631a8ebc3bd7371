"""EWC: Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks", federated by FedAvg."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch

from fcilbench.api import Aggregator, Client, Context, Field, FisherKind, Message, Net, PresetParams, Server, Space

_FELT = 0.01
"""Least ratio of the penalty's gradient to a sample's at which the penalty is felt."""


class Ewc(Aggregator):
    """Elastic Weight Consolidation: penalises changes to each weight in proportion to its Fisher information.

    From the second task on a client minimises L_CE + lambda sum_j F_j (theta_j - theta*_j)^2; lambda is half that of
    Kirkpatrick et al. 2017 (equation 3), who write lambda / 2. At the end of a task each client sends its diagonal
    Fisher at the final global model theta*, and the server pools them, F_task = sum_k p_k F_k: F <- gamma F + F_task
    (`online`, Schwarz et al. 2018; our default), or as in the original one term a task (`separate`). Their sum is one
    term, but for a constant: F = sum_t F_t with sum_t F_t theta*_t / F in the place of theta*. There is none after the
    last task.

    theta* is the model with which the task began: a client that holds it is not sent it again. `ewc/penalty_ratio` is
    ||2 lambda F (theta - theta*)|| at the end of a task over the root mean squared norm of a sample's gradient,
    sqrt(sum_j F_j), at the end of the one before; below 1 % the method is FedAvg, and a warning says so.
    """

    version = "3"  # separate terms are kept as their centre, so that rounding moves nothing
    card: ClassVar = {
        "family": "regularisation",
        "trained": "the whole model",
        "travels": "the model; a diagonal Fisher once a task",
        "memory": "nothing",
        "source": "Kirkpatrick et al. 2017, PNAS",
    }

    class Params(PresetParams):
        """Hyperparameters of EWC."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"mode": "separate", "lambda_ewc": 200.0}}

        lambda_ewc: float = Field(
            100.0,
            ge=0,
            description="strength of the penalty; 0 is FedAvg",
            source="a small sweep on digits (4 clients, 3 seeds; not a claim); "
            "Kirkpatrick et al. 2017: 400 / 2 on Atari; fed-mammoth: 1, which has no effect",
            space=Space(low=1.0, high=1e5, log=True),
        )
        mode: Literal["online", "separate"] = Field("online", description="one decayed term, or one term a task")
        gamma: float = Field(0.9, ge=0, le=1, description="decay of the old Fisher (online)", source="fed-mammoth")
        fisher_type: FisherKind = Field("sampled", description="where the labels of the Fisher come from")
        n_fisher_samples: int | None = Field(None, ge=1, description="samples of a drawn subset; none: all")
        penalise_head: bool = Field(True, description="whether the classifier head is tied too")

    # ---------------------------------------------------------------- clients

    def gradient(self, gradient: torch.Tensor, net: Net, context: Context) -> None:
        """Adds the penalty's gradient, in float32 outside autocast."""
        add_penalty_gradient(gradient, net.parameters, context, self.params.lambda_ewc)

    def task_statistics(self, client: Client) -> Message:
        """Sends the mean Fisher `[P]` at the final global model, and n_k."""
        fisher = client.fisher(self.params.fisher_type, self.params.n_fisher_samples)
        return {"fisher": fisher, "samples": torch.tensor(client.samples, device=fisher.device)}

    # ---------------------------------------------------------------- server

    def wants_task_statistics(self, server: Server) -> bool:
        """Needs no Fisher after the last task."""
        return not server.last_task

    def broadcast(self, server: Server) -> Message:
        """Sends the Fisher, and theta* or the centre of the separate terms; nothing in the first task."""
        return {name: server.state[name] for name in ("fisher", "anchor") if name in server.state}

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Pools the clients' Fishers and moves the anchor; without any, all stays as it is."""
        self._measure_penalty(server)
        if not statistics:
            return
        messages = statistics.values()
        fisher = pool((m["fisher"] for m in messages), [int(m["samples"]) for m in messages])
        state, vector = server.state, server.vector
        state["gradient_norm"] = math.sqrt(max(0.0, float(fisher.sum(dtype=torch.float64))))  # noise may be negative
        if not self.params.penalise_head:
            fisher[server.layout.head] = 0.0
        if self.params.mode == "online":
            state["fisher"] = fisher if "fisher" not in state else fisher.add_(state["fisher"], alpha=self.params.gamma)
            state["anchor"] = vector.clone()
        else:
            own = vector[server.layout.trainable]
            total = fisher + state["fisher"] if "fisher" in state else fisher
            centre = state["anchor"] if "fisher" in state else own
            # Nothing pulls where all Fishers are 0, and where theta has not moved the pull must be exactly 0.
            share = torch.where(total != 0, fisher / total, 1.0)
            state.update(fisher=total, anchor=centre + share * (own - centre))
        server.log("ewc/fisher_mean", float(state["fisher"].mean()))
        server.log("ewc/fisher_max", float(state["fisher"].max()))

    def _measure_penalty(self, server: Server) -> None:
        """Logs how the penalty's gradient compares to a sample's, and warns where it is too small to be felt."""
        if "fisher" not in server.state or self.params.lambda_ewc == 0:
            return
        theta = server.vector[server.layout.trainable]
        penalty = torch.zeros_like(theta)
        add_penalty_gradient(penalty, theta, self.broadcast(server), self.params.lambda_ewc)
        size, scale = float(penalty.norm()), server.state["gradient_norm"]
        if size == 0 or scale == 0:  # the task moved nothing, or the one before had a single class
            return
        server.log("ewc/penalty_ratio", size / scale)
        if size / scale < _FELT:
            server.warn(
                f"ewc: the penalty's gradient was below {_FELT:.0%} of a sample's at the end of a task, so the method "
                "acts as FedAvg; raise lambda_ewc (see ewc/penalty_ratio in the curve)"
            )


def add_penalty_gradient(
    gradient: torch.Tensor, theta: torch.Tensor, terms: Mapping[str, torch.Tensor], strength: float
) -> None:
    """Adds the gradient `[P]` of the penalty in place: 2 lambda F (theta - theta*).

    `terms` are `fisher` F and `anchor` theta*; without any: nothing.
    """
    if "anchor" in terms:
        gradient.addcmul_(terms["fisher"], theta - terms["anchor"][: theta.numel()], value=2.0 * strength)


def pool(fishers: Iterable[torch.Tensor], samples: Sequence[int]) -> torch.Tensor:
    """Returns the mean Fisher over all clients' samples, `sum_k n_k F_k / sum_k n_k`, accumulated in float64.

    F_k `[P]` is the mean Fisher of a client. At one common model the result equals the Fisher of the pooled data.
    """
    count = sum(samples)
    parts = iter(fishers)
    first = next(parts)
    total = first.to(torch.float64) * (samples[0] / count)
    for fisher, own in zip(parts, samples[1:], strict=True):
        total.add_(fisher, alpha=own / count)
    return total.to(first.dtype)
