"""Federated ridge regression on frozen features, after RanPAC (McDonnell et al. 2023) and Fed3R (Fani et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import field_validator
from torch import nn

from fcilbench.api import (
    Client,
    FeatureExtractor,
    Field,
    Memory,
    Message,
    No,
    Request,
    Server,
    Updates,
    pack_symmetric,
    unpack_symmetric,
)
from fcilbench.api import Params as BaseParams
from fcilbench.plugins.aggregators.ncm import FrozenFeatures, write_head
from fcilbench.vectors.class_means import class_sums
from fcilbench.vectors.ridge import gcv_strength, solve_ridge


class SecondMoments(FrozenFeatures):
    """Base of methods that fit a head from the Gram matrix X^T X of the features beside the class sums, in float64.

    A subclass may send the Gram in some tasks only.
    """

    def statistics(self, client: Client) -> Message:
        """Sends the upper triangle of X^T X, the sums of the classes that it has, and all counts of the task."""
        return second_moments(client)

    def begin(self, server: Server) -> None:
        """Creates an empty Gram matrix, class sums and counts."""
        super().begin(server)
        size = server.layout.features
        server.state["gram"] = server.vector.new_zeros(size * (size + 1) // 2, dtype=torch.float64)

    def _add(self, messages: Sequence[Message], server: Server) -> None:
        super()._add(messages, server)
        for message in messages:
            if "gram" in message:
                server.state["gram"] += message["gram"]


def second_moments(client: Client, samples: Memory | None = None) -> dict[str, torch.Tensor]:
    """Returns what a client tells of its samples of the task, or of some of them.

    These are the upper triangle of X^T X as `gram`, float64 `[F (F + 1) / 2]`; the class `sums` of the classes that are
    among them, float64 `[l, F]`; and the `counts` of all classes of the task, int32 `[c]`.
    """
    task, size, device = client.task, client.feature_dim, client.received_model.device
    gram = torch.zeros(size, size, dtype=torch.float64, device=device)
    labelled = []
    for batch in client.batches(samples):
        features = client.net.features(batch.inputs).to(torch.float64)
        gram += features.T @ features
        labelled.append((features, task.local(batch.labels)))
    sums, counts = (found.to(device) for found in class_sums(labelled, task.size, size))
    return {"gram": pack_symmetric(gram), "sums": sums[counts > 0], "counts": counts.to(torch.int32)}


class Ridge(SecondMoments):
    """Ridge regression onto one-hot targets, on frozen features or a random projection of them.

    Clients upload X^T X and their class sums in float64; the server solves with the sums over all clients and tasks so
    far. That is the centralised solution, whatever the partition and the order of the tasks.
    """

    version = "3"  # with few samples another strength
    card: ClassVar = {
        "family": "controls",
        "trained": "nothing",
        "travels": "a Gram matrix of features, and sums of each class, once a task",
        "memory": "nothing",
        "source": "McDonnell et al. 2023, NeurIPS; Fani et al. 2024, ICML",
    }
    role = "control"

    class Params(BaseParams):
        """Hyperparameters of ridge regression."""

        ridge: Literal["gcv"] | float = Field(
            "gcv",
            description="lambda in units of the Gram's mean diagonal, or generalised cross-validation on the server",
            source="Golub, Heath, Wahba 1979; RanPAC picks lambda on held-out samples, Fed3R fixes 0.01 (absolute)",
        )
        random_features: int = Field(
            0,
            ge=0,
            description="size M of the random projection ReLU(P f), P Gaussian and fixed; 0: the features as they are",
            source="RanPAC: 10,000",
        )

        @field_validator("ridge")
        @classmethod
        def _regularises(cls, ridge: Literal["gcv"] | float) -> Literal["gcv"] | float:
            if ridge != "gcv" and ridge <= 0:
                raise ValueError("must be positive, or gcv")
            return ridge

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Freezes the backbone, and puts the random projection between it and the head.

        P comes from the stream of the initialisation, hence from the train seed: clients draw it themselves, and it is
        never sent.
        """
        if (declined := super().prepare(network, request)) is not None:
            return declined
        size, head, extractor = self.params.random_features, network.head, network.extractor
        if size == 0:
            return None
        assert isinstance(head, nn.Linear)
        assert isinstance(extractor, FeatureExtractor)
        projected = nn.Sequential(extractor, RandomProjection(extractor.feature_dim, size))
        network.extractor = FeatureExtractor(projected, size, extractor.channels_last)
        network.head = nn.Linear(size, head.out_features)
        return None

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the clients' sums and solves."""
        super().aggregate(updates, server)
        write_head(server, self._solved(server, self.params.ridge), server.state["counts"] > 0)

    @staticmethod
    def _solved(server: Server, chosen: Literal["gcv"] | float) -> torch.Tensor:
        """Returns the rows `[C, F]` of the head from all sums so far."""
        state, gram = server.state, unpack_symmetric(server.state["gram"], server.layout.features)
        strength = gcv_strength(gram, state["sums"], float(state["counts"].sum())) if chosen == "gcv" else chosen
        server.log("ridge/strength", strength)
        return solve_ridge(gram, state["sums"], strength)


class RandomProjection(nn.Module):
    """ReLU of a fixed Gaussian projection, no parameter of the model."""

    projection: torch.Tensor

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        projection = torch.randn(features, size) / math.sqrt(features)
        self.register_buffer("projection", projection, persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Maps features `[B, F]` to relu(P f), float32 `[B, M]`."""
        with torch.autocast(features.device.type, enabled=False):  # the head reads it: float32 under bf16 too
            return torch.relu(features.float() @ self.projection)
