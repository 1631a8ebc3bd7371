"""FedNova: Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import nn

from fcilbench.api import Aggregator, Client, Context, Field, Message, Net, No, Protocol, Request, Server, Updates
from fcilbench.api import Params as BaseParams
from fcilbench.vectors.local_steps import gradient_weight
from fcilbench.vectors.sums import weighted_sum

_UNIT = 1 << 32
"""Parts of a step in which a client says how much its steps weigh under a schedule of the learning rate."""


class FedNova(Aggregator):
    """FedNova: averages what clients move per unit of local work, so that nobody counts more for taking more steps.

    A local solver that is linear in its gradients moves by -lr sum_s a_ks g_s. With ||a_k|| = sum_s a_ks and
    Delta_k = theta_k - theta_r (Wang et al. 2020)

        theta <- theta + tau_eff sum_k p_k Delta_k / ||a_k||,  tau_eff = sum_k p_k ||a_k||.

    ||a_k|| is the number of steps tau_k of plain SGD; with momentum rho each step s adds (1 - rho^(s+1)) / (1 - rho),
    under a schedule times lr_s / lr (`fcilbench.vectors.local_steps`), and with a proximal term mu it is
    (1 - (1 - lr mu)^tau) / (lr mu). Adam and AdamW are not linear: their steps are counted like those of SGD, since
    each moves by about lr. Buffers are averaged by samples.

    Clients send their number of steps, an integer: stressors change every float of an upload, and would multiply
    Delta_k and a float ||a_k|| alike. Under a schedule they send ||a_k||, too, as an integer in parts of 2^-32.
    """

    version = "1"
    card: ClassVar = {
        "family": "optimisation",
        "trained": "the whole model",
        "travels": "the model; the number of local steps",
        "memory": "nothing",
        "source": "Wang et al. 2020, NeurIPS",
    }

    class Params(BaseParams):
        """Hyperparameters of FedNova."""

        gmf: float = Field(
            0.0, ge=0, lt=1, description="momentum of the server, within a task", source="code of Wang et al. 2020"
        )
        tau_eff: Literal["weighted", "steps"] = Field(
            "weighted", description="factor of the mean direction: sum_k p_k ||a_k||, or sum_k p_k tau_k"
        )
        mu: float = Field(
            0.0, ge=0, description="weight of a proximal term mu / 2 ||theta - theta_r||^2 in the clients' loss"
        )

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines a proximal term whose weights are not known."""
        protocol = request.protocol
        if self.params.mu and (protocol.optimizer != "sgd" or protocol.momentum):
            return No("FedNova: how steps with a proximal term (mu) add up is known for sgd without momentum alone")
        return None

    # ---------------------------------------------------------------- clients

    def gradient(self, gradient: torch.Tensor, net: Net, context: Context) -> None:
        """Adds the gradient of the proximal term."""
        if self.params.mu:
            gradient.add_(net.parameters - context["received"][net.layout.trainable], alpha=self.params.mu)

    def statistics(self, client: Client) -> Message:
        """Sends the number of steps tau_k, int32, and where the rate has a schedule ||a_k|| in parts of 2^-32."""
        device, protocol = client.received_model.device, client.protocol
        message = {"steps": torch.tensor(client.steps, dtype=torch.int32, device=device)}
        if protocol.schedule != "constant":
            weight = self._weight([rate / protocol.lr for rate in client.learning_rates], protocol)
            message["weight"] = torch.tensor(round(weight * _UNIT), dtype=torch.int64, device=device)
        return message

    def _weight(self, rates: Sequence[float], protocol: Protocol) -> float:
        """Returns ||a_k|| of steps with these learning rates, as multiples of the protocol's."""
        if not self.params.mu:
            return gradient_weight(rates, protocol.momentum)
        total = 0.0
        for rate in rates:
            total = (1.0 - protocol.lr * rate * self.params.mu) * total + rate
        return total

    # ---------------------------------------------------------------- server

    def begin_task(self, server: Server) -> None:
        """Forgets the server's momentum: it would go on moving head rows of the last task."""
        server.state.pop("momentum", None)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Moves the trained entries along the normalised mean, and buffers to their mean."""
        parts, samples, total = updates.layout, updates.samples, sum(updates.samples)
        steps = [int(message["steps"]) for message in updates.statistics]
        weights = [self._uploaded(message, server.protocol) for message in updates.statistics]
        factors = weights if self.params.tau_eff == "weighted" else steps
        tau_eff = math.fsum(n * factor for n, factor in zip(samples, factors, strict=True)) / total
        server.log("fednova/tau_eff", tau_eff)
        shares = [n / total * (tau_eff / weight) for n, weight in zip(samples, weights, strict=True)]
        direction = weighted_sum(torch.tensor(shares), updates.delta[:, parts.trainable])
        if self.params.gmf:
            if "momentum" in server.state:
                direction.add_(server.state["momentum"], alpha=self.params.gmf)
            live = parts.live(server.task.classes).to(direction.device)
            server.state["momentum"] = direction * live
        server.step(direction, parts.trainable)
        server.step(updates.mean(parts.buffers), parts.buffers)

    def _uploaded(self, message: Message, protocol: Protocol) -> float:
        """Returns ||a_k|| of one client."""
        if "weight" in message:
            return int(message["weight"]) / _UNIT
        return self._weight([1.0] * int(message["steps"]), protocol)
