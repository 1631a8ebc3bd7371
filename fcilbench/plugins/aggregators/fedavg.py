"""FedAvg: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data"."""

from __future__ import annotations

from typing import Literal

import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.server import Server, Updates
from fcilbench.spec.params import Field
from fcilbench.spec.params import Params as BaseParams
from fcilbench.vectors.sums import weighted_sum


class FedAvg(Aggregator):
    """Clients train the global model; the server averages what they send, by sample count.

    theta <- theta + sum_i w_i (theta_i - theta), with w_i = n_i / sum n.
    """

    version = "1"

    class Params(BaseParams):
        """Hyperparameters of FedAvg."""

        average: Literal["weighted", "uniform"] = Field(
            "weighted", description="weights by sample count, or equal for all clients with data"
        )

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the mean update to the global vector."""
        if self.params.average == "weighted":
            server.step(updates.mean())
        else:
            count = len(updates.clients)
            server.step(weighted_sum(torch.full((count,), 1.0 / count), updates.delta))
