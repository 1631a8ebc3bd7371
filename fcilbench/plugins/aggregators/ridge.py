"""Federated ridge regression on frozen features, after RanPAC (McDonnell et al. 2023) and Fed3R (Fani et al. 2024)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import field_validator
from torch import nn

from fcilbench.api.aggregator import Request
from fcilbench.api.backbone import FeatureExtractor
from fcilbench.api.client import Client
from fcilbench.api.message import Message, pack_symmetric, unpack_symmetric
from fcilbench.api.server import Server, Updates
from fcilbench.plugins.aggregators.ncm import FrozenFeatures, write_head
from fcilbench.spec.params import Field
from fcilbench.spec.params import Params as BaseParams
from fcilbench.vectors.class_means import class_sums

GRID = tuple(10.0 ** (half / 2) for half in range(-16, 5))
"""Strengths that are tried, in units of the Gram's mean diagonal: half decades from 1e-8 to 100."""


class Ridge(FrozenFeatures):
    """Ridge regression onto one-hot targets, on frozen features or a random projection of them.

    Clients upload X^T X and their class sums in float64; the server solves with the sums over all clients and tasks so
    far. That is the centralised solution, whatever the partition and the order of the tasks.
    """

    version = "1"

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
        """Puts the random projection between backbone and head.

        P comes from the stream of the initialisation, hence from the train seed: clients draw it themselves, and it is
        never sent.
        """
        size, head, extractor = self.params.random_features, network.head, network.extractor
        if size == 0:
            return
        assert isinstance(head, nn.Linear)
        assert isinstance(extractor, FeatureExtractor)
        projected = nn.Sequential(extractor, _RandomProjection(extractor.feature_dim, size))
        network.extractor = FeatureExtractor(projected, size, extractor.channels_last)
        network.head = nn.Linear(size, head.out_features)

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
        """Adds the clients' sums and solves."""
        super().aggregate(updates, server)
        state = server.state
        for message in updates.statistics:
            state["gram"] += message["gram"]
        gram = unpack_symmetric(state["gram"], server.layout.features)
        chosen, samples = self.params.ridge, float(state["counts"].sum())
        strength = gcv_strength(gram, state["sums"], samples) if chosen == "gcv" else chosen
        server.log("ridge/strength", strength)
        write_head(server, solve_ridge(gram, state["sums"], strength), state["counts"] > 0)


def solve_ridge(gram: torch.Tensor, sums: torch.Tensor, strength: float) -> torch.Tensor:
    """Returns the `[C, F]` W of least ||X W^T - Y||^2 + lambda ||W||^2 with lambda = strength * tr(G) / F, in float64.

    Args:
        gram: G = X^T X, `[F, F]`.
        sums: Y^T X, for one-hot Y the sum of each class's features, `[C, F]`.
        strength: Positive; relative, so that scaling all features changes no prediction.
    """
    wide = gram.to(torch.float64)
    level = strength * wide.diagonal().mean()
    # A Gram of zeros has sums of zeros: any positive level then gives weights of zero.
    level = torch.where(level > 0, level, torch.ones_like(level))
    regular = wide + level * torch.eye(len(wide), dtype=torch.float64, device=wide.device)
    factor = torch.linalg.cholesky(regular)
    return torch.cholesky_solve(sums.to(torch.float64).T, factor).T


def gcv_strength(gram: torch.Tensor, sums: torch.Tensor, samples: float) -> float:
    """Returns the strength of `GRID` of least generalised cross-validation (Golub, Heath, Wahba 1979).

    GCV(lambda) = n RSS / (n - df)^2 with df = tr(G (G + lambda I)^-1). For one-hot targets RSS = n - 2 <W, S> +
    <W, W G> needs the Gram and the class sums only, so no sample is held out and no test sample is looked at. If the
    `samples` n decide nothing, the largest strength is returned.
    """
    wide = gram.to(torch.float64)
    values, vectors = torch.linalg.eigh(wide)
    values = values.clamp(min=0.0)
    energy = (sums.to(torch.float64) @ vectors).square().sum(dim=0)
    level = float(wide.diagonal().mean())
    best, chosen = float("inf"), float(GRID[-1])
    for strength in GRID:
        inverse = 1.0 / (values + strength * level) if level > 0 else torch.zeros_like(values)
        rss = samples - 2.0 * float((energy * inverse).sum()) + float((energy * values * inverse.square()).sum())
        left = samples - float((values * inverse).sum())
        # Almost interpolating: residual and freedom both vanish, and their quotient is rounding.
        score = samples * max(rss, 0.0) / left**2 if left > 1e-6 * samples else float("inf")
        if score < best:
            best, chosen = score, strength
    return chosen


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
