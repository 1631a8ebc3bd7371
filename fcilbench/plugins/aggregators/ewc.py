"""EWC: Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks", federated by FedAvg."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import nn

from fcilbench.api.aggregator import Aggregator, No, Request, Traits
from fcilbench.api.client import Client, Context, FisherKind, Net
from fcilbench.api.message import Message
from fcilbench.api.schedule import Schedule
from fcilbench.api.server import Server
from fcilbench.spec.params import Field, PresetParams, Space
from fcilbench.vectors.fisher import add_penalty_gradient, pool

_AMP_SCALE = 2.0**16


class Ewc(Aggregator):
    """Each weight is tied to its value after the last task, by a spring as stiff as its Fisher information.

    From the second task on a client minimises L_CE + lambda sum_j F_j (theta_j - theta*_j)^2; lambda is half that of
    Kirkpatrick et al. 2017, who write lambda / 2. At the end of a task each client sends its Fisher at the final global
    model, and the server pools them, F_task = sum_k p_k F_k: F <- gamma F + F_task (`online`, Schwarz et al. 2018; our
    default), or as in the original one term a task (`separate`), kept as A = sum F_t and H = sum F_t theta*_t. There is
    none after the last task.

    Clients keep theta*, the model with which the task began; one that never held it is sent it.
    """

    version = "1"
    traits = Traits(extra_objective=True, extra_memory=True, training_modification=True)

    class Params(PresetParams):
        """Hyperparameters of EWC."""

        presets: ClassVar = {
            "original": {"mode": "separate"},
            "fed_mammoth": {"fisher_type": "label_prob", "skip_last_round": True},
        }

        lambda_ewc: float = Field(
            1.0,
            ge=0,
            description="strength of the penalty; 0 is FedAvg",
            source="fed-mammoth",
            space=Space(low=0.01, high=1e4, log=True),
        )
        mode: Literal["online", "separate"] = Field("online", description="one decayed term, or one term a task")
        gamma: float = Field(0.9, ge=0, le=1, description="decay of the old Fisher (online)", source="fed-mammoth")
        fisher_type: FisherKind = Field("sampled", description="where the labels of the Fisher come from")
        n_fisher_samples: int | None = Field(None, ge=1, description="samples of a drawn subset; none: all")
        penalise_head: bool = Field(True, description="whether the classifier head is tied too")
        skip_last_round: bool = Field(
            False, description="train one round less a task, as fed-mammoth, whose last round only takes the Fisher"
        )

        @property
        def strength(self) -> float:
            """Lambda in force.

            fed-mammoth adds the penalty's gradient before it unscales the loss in mixed precision, which divides it
            by the scaler's initial 65,536; its preset does the same at any precision.
            """
            return self.lambda_ewc / _AMP_SCALE if self.preset == "fed_mammoth" else self.lambda_ewc

    # ---------------------------------------------------------------- the experiment

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines a schedule that `skip_last_round` would empty."""
        if self.params.skip_last_round and request.protocol.rounds < 2:
            return No("skip_last_round leaves no round to train: it needs at least 2 rounds")
        return None

    def build_schedule(self, schedule: Schedule) -> Schedule:
        """Takes the last round away from each task, if so asked."""
        if not self.params.skip_last_round:
            return schedule
        return replace(schedule, phases=tuple(replace(phase, rounds=phase.rounds - 1) for phase in schedule.phases))

    # ---------------------------------------------------------------- clients

    def gradient(self, gradient: torch.Tensor, net: Net, context: Context) -> None:
        """Adds 2 lambda F (theta - theta*), or 2 lambda (A theta - H), in float32 outside autocast."""
        strength, theta = self.params.strength, net.parameters
        if "anchor" in context:
            anchor = context["anchor"][: theta.numel()]
            add_penalty_gradient(gradient, theta, context["fisher"], anchor, strength)
        elif "fisher" in context:
            gradient.addcmul_(context["fisher"], theta, value=2.0 * strength)
            gradient.sub_(context["fisher_anchor"], alpha=2.0 * strength)

    def task_statistics(self, client: Client) -> Message:
        """Sends the mean Fisher `[P]` at the final global model, and n_k."""
        fisher = client.fisher(self.params.fisher_type, self.params.n_fisher_samples)
        return {"fisher": fisher, "samples": torch.tensor(client.samples, device=fisher.device)}

    # ---------------------------------------------------------------- server

    def wants_task_statistics(self, server: Server) -> bool:
        """Needs no Fisher after the last task."""
        return not server.last_task

    def task_broadcast(self, server: Server) -> Message:
        """Sends the Fisher, and theta* or H; nothing in the first task."""
        return {name: server.state[name] for name in ("fisher", "anchor", "fisher_anchor") if name in server.state}

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Pools the clients' Fishers and moves the anchor; without any, all stays as it is."""
        if not statistics:
            return
        messages = [statistics[client] for client in sorted(statistics)]
        fisher = pool((m["fisher"] for m in messages), [int(m["samples"]) for m in messages])
        if not self.params.penalise_head:
            fisher[server.layout.head] = 0.0
        state, theta = server.state, server.vector
        if self.params.mode == "online":
            state["fisher"] = fisher if "fisher" not in state else fisher.add_(state["fisher"], alpha=self.params.gamma)
            state["anchor"] = theta.clone()
        else:
            pulled = fisher * theta[server.layout.trainable]
            state["fisher"] = fisher if "fisher" not in state else fisher.add_(state["fisher"])
            state["fisher_anchor"] = pulled if "fisher_anchor" not in state else pulled.add_(state["fisher_anchor"])
        server.log("ewc/fisher_mean", float(state["fisher"].mean()))
        server.log("ewc/fisher_max", float(state["fisher"].max()))
