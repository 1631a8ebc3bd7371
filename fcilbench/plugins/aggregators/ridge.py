"""Federated ridge regression on frozen features, after RanPAC (McDonnell et al. 2023) and Fed3R (Fani et al. 2024)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import field_validator
from torch import nn

from fcilbench.api import (
    Client,
    FeatureExtractor,
    Field,
    Message,
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
        task, size = client.task, client.feature_dim
        gram = torch.zeros((), dtype=torch.float64)
        labelled = []
        for batch in client.batches():
            features = client.net.features(batch.inputs).to(torch.float64)
            gram = gram.to(features.device) + features.T @ features
            labelled.append((features, task.local(batch.labels)))
        sums, counts = class_sums(labelled, task.size, size)
        return {"gram": pack_symmetric(gram), "sums": sums[counts > 0], "counts": counts.to(torch.int32)}

    def begin(self, server: Server) -> None:
        """Creates an empty Gram matrix, class sums and counts."""
        super().begin(server)
        size = server.layout.features
        server.state["gram"] = server.vector.new_zeros(size * (size + 1) // 2, dtype=torch.float64)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the clients' sums."""
        super().aggregate(updates, server)
        for message in updates.statistics:
            if "gram" in message:
                server.state["gram"] += message["gram"]


class Ridge(SecondMoments):
    """Ridge regression onto one-hot targets, on frozen features or a random projection of them.

    Clients upload X^T X and their class sums in float64; the server solves with the sums over all clients and tasks so
    far. That is the centralised solution, whatever the partition and the order of the tasks.
    """

    version = "2"  # the backbone is no part of the model that is sent and deployed
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

    def prepare(self, network: nn.Module, request: Request) -> None:
        """Freezes the backbone, and puts the random projection between it and the head.

        P comes from the stream of the initialisation, hence from the train seed: clients draw it themselves, and it is
        never sent.
        """
        super().prepare(network, request)
        size, head, extractor = self.params.random_features, network.head, network.extractor
        if size == 0:
            return
        assert isinstance(head, nn.Linear)
        assert isinstance(extractor, FeatureExtractor)
        projected = nn.Sequential(extractor, _RandomProjection(extractor.feature_dim, size))
        network.extractor = FeatureExtractor(projected, size, extractor.channels_last)
        network.head = nn.Linear(size, head.out_features)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the clients' sums and solves."""
        super().aggregate(updates, server)
        state = server.state
        gram = unpack_symmetric(state["gram"], server.layout.features)
        chosen, samples = self.params.ridge, float(state["counts"].sum())
        strength = gcv_strength(gram, state["sums"], samples) if chosen == "gcv" else chosen
        server.log("ridge/strength", strength)
        write_head(server, solve_ridge(gram, state["sums"], strength), state["counts"] > 0)


class _RandomProjection(nn.Module):
    """ReLU of a fixed Gaussian projection, no parameter of the model."""

    projection: torch.Tensor

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        projection = torch.randn(features, size) / math.sqrt(features)
        self.register_buffer("projection", projection, persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with torch.autocast(features.device.type, enabled=False):  # the head reads it: float32 under bf16 too
            return torch.relu(features.float() @ self.projection)
