"""The task of the best class of a ridge regression on frozen features."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fcilbench.api import Client, Message, SelectorServer, labelled_features, pack_symmetric, unpack_symmetric
from fcilbench.plugins.selectors.prototype import Prototype
from fcilbench.vectors.class_means import MISSING, class_sums
from fcilbench.vectors.ridge import gcv_strength, solve_ridge


class Ridge(Prototype):
    """The task of the best class of a ridge regression, on features of the network as it was before training.

    Clients send the Gram matrix of their features beside their sums by class, in float64, as the solution may divide
    by small eigenvalues; the server solves for one-hot targets, with the strength of generalised cross-validation. It
    is the regression of the method `ridge`, here for the task alone.
    """

    version = "2"  # with few samples another strength
    dtype = torch.float64

    def statistics(self, client: Client) -> Message:
        """Sends class sums, counts, and the upper triangle of X^T X, float64 `[F (F + 1) / 2]`."""
        labelled = [(features.double(), labels) for features, labels in labelled_features(client)]
        sums, counts = class_sums(labelled, client.task.size, client.feature_dim)
        gram = sum((rows.T @ rows for rows, _ in labelled), sums.new_zeros(()))
        return {"sums": sums[counts > 0], "counts": counts.to(torch.int32), "gram": pack_symmetric(gram)}

    def _head(self, server: SelectorServer, statistics: Mapping[int, Message]) -> torch.Tensor:
        state, size = server.state, server.layout.features
        if "gram" not in state:
            state["gram"] = state["sums"].new_zeros(size * (size + 1) // 2)
        for message in statistics.values():
            state["gram"] += message["gram"]
        sums, counts, gram = state["sums"], state["counts"], unpack_symmetric(state["gram"], size)
        weight = solve_ridge(gram, sums, gcv_strength(gram, sums, float(counts.sum())))
        bias = torch.where(counts > 0, 0.0, MISSING).to(weight)
        return torch.cat([weight.flatten(), bias]).float()
