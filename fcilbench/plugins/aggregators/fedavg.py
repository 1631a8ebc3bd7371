"""FedAvg: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data"."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from fcilbench.api import Aggregator, Field, Server, Updates, merge_adapters
from fcilbench.api import Params as BaseParams
from fcilbench.vectors.sums import client_weights, weighted_sum


class FedAvg(Aggregator):
    """Federated Averaging: clients train the global model, and the server averages what they send.

    theta <- theta + sum_k p_k (theta_k - theta), with p_k = n_k / sum n over the clients that took part (McMahan et
    al. 2017, algorithm 1). On adapters that averages A and B apart, as FedIT does (Zhang et al. 2024);
    `lora_merge: products` averages the products B A (`fcilbench.vectors.lora`), with the same bytes both ways.
    """

    version = "1"
    card: ClassVar = {
        "family": "averaging",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "McMahan et al. 2017, AISTATS",
    }
    role: ClassVar = {"oracle": "control"}  # the head of its one model is the fair control of task modules

    class Params(BaseParams):
        """Hyperparameters of FedAvg."""

        weighting: Literal["samples", "uniform"] = Field(
            "samples", description="weights p_k by sample count, or equal for all clients with data"
        )
        lora_merge: Literal["factors", "products"] = Field(
            "factors",
            description="low-rank adapters: average A and B, or the products B A, factorised again at the same rank",
        )

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the mean update to the global vector."""
        weights = client_weights(updates.weights, self.params.weighting)
        direction = weighted_sum(weights, updates.delta)
        if self.params.lora_merge == "products":

            def mean(_: str, products: torch.Tensor) -> torch.Tensor:
                return weighted_sum(weights, products.flatten(1)).view(products.shape[1:])

            lost = merge_adapters(direction, server.vector, updates.delta, updates.layout, mean)
            if lost is not None:
                server.log("fedavg/lora_lost", lost)  # share of squared norm, largest of any adapter
        server.step(direction)
