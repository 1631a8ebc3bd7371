"""FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks"."""

from __future__ import annotations

from typing import ClassVar

import torch

from fcilbench.api import Aggregator, Context, Field, Net, Server, Space, Updates
from fcilbench.api import Params as BaseParams


class FedProx(Aggregator):
    """FedProx: a proximal term keeps local training near the model that the client received.

    Client k minimises L_k(theta) + mu / 2 ||theta - theta_r||^2 over all trained weights, where theta_r is the received
    vector (Li et al. 2020, algorithm 2): each step's gradient `[P]` is g + mu (theta - theta_r). The server averages as
    FedAvg does, theta_r + sum_k p_k (theta_k - theta_r); so does the authors' code, where the paper draws clients by
    p_k and takes the plain mean. A client that was slow sends what it has, under every method here: the paper drops it
    under FedAvg.

    The first step of a visit has theta = theta_r: with one local step a round the method is FedAvg. AdamW rescales the
    whole gradient, proximal term included. `fedprox/pull` is mu ||theta_k - theta_r||, the norm of the term's gradient
    when a visit ends, in the mean over clients; under SGD about mu lr K of the mean gradient of its K steps.
    """

    version = "1"
    card: ClassVar = {
        "family": "optimisation",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "Li et al. 2020, MLSys",
    }

    class Params(BaseParams):
        """Hyperparameters of FedProx."""

        mu: float = Field(
            0.01,
            ge=0,
            description="weight of the proximal term; 0 is FedAvg",
            source="code of Li et al. 2020, who tune it in {0.001, 0.01, 0.1, 0.5, 1}",
            space=Space(low=1e-4, high=1e2, log=True),
        )

    def gradient(self, gradient: torch.Tensor, net: Net, context: Context) -> None:
        """Adds mu (theta - theta_r), in float32 outside autocast; it is 0 for head rows that do not train."""
        if self.params.mu:
            received = context["received"][net.layout.trainable]
            gradient.add_(net.parameters - received, alpha=self.params.mu)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages as FedAvg does, and logs how strong the term was."""
        norms = torch.linalg.vector_norm(updates.delta[:, updates.layout.trainable], dim=1)
        server.log("fedprox/pull", self.params.mu * float(norms.mean()))
        super().aggregate(updates, server)
