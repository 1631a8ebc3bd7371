"""Krum and multi-Krum: Blanchard et al. 2017, "Machine Learning with Adversaries"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import field_validator
from torch import nn

from fcilbench.api import Aggregator, Field, No, Request, Server, Updates
from fcilbench.api import Params as BaseParams
from fcilbench.vectors.distances import squared_distances
from fcilbench.vectors.sums import weighted_sum

_F = "number f of Byzantine clients to withstand in a round of n; auto: (n - 3) // 2, the most that n allows"


class Krum(Aggregator):
    """Krum: the global model moves by the one update that is nearest to its neighbours (Blanchard et al. 2017).

    score_k = the sum of the n - f - 2 smallest ||Delta_k - Delta_j||^2, j != k, over the trained parameters `[P]`, for
    the n clients that answered, f of them Byzantine: n >= 2 f + 3. theta <- theta + Delta of the least score, ties by
    client id; its buffers come along. Sample counts do not matter. A round with fewer clients withstands
    f' = (n - 3) // 2 of them; one or two clients are averaged.
    """

    version = "1"
    card: ClassVar = {
        "family": "robust",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "Blanchard et al. 2017, NeurIPS",
    }

    class Params(BaseParams):
        """Hyperparameters of Krum."""

        byzantine: Literal["auto"] | int = Field("auto", description=_F)

        @field_validator("byzantine")
        @classmethod
        def _counts(cls, byzantine: Literal["auto"] | int) -> Literal["auto"] | int:
            if byzantine != "auto" and byzantine < 0:
                raise ValueError("must be 0 or more, or auto")
            return byzantine

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines rounds that are too small for the f that is asked for."""
        wanted, protocol = self.params.byzantine, request.protocol
        drawn = max(1, round(protocol.participation * request.clients))
        if wanted != "auto" and drawn < 2 * wanted + 3:
            return No(f"byzantine: {wanted} needs rounds of {2 * wanted + 3} clients or more, and these have {drawn}")
        return None

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the mean of the chosen updates."""
        count = len(updates.delta)
        byzantine, chosen = self._byzantine(count, server), list(range(count))
        if count > 2:
            distances = squared_distances(updates.delta[:, updates.layout.trainable])
            ranks = ranked(scores(distances, byzantine), updates.clients)
            chosen = sorted(ranks[: self._kept(count, byzantine)])
        weights = torch.zeros(count)
        weights[chosen] = 1.0 / len(chosen)
        server.step(weighted_sum(weights, updates.delta))

    def _byzantine(self, count: int, server: Server) -> int:
        """Returns the f of a round, and warns where it is less than what is asked for, or nothing."""
        most, wanted = max(0, (count - 3) // 2), self.params.byzantine
        if (most == 0) if wanted == "auto" else (wanted > most):
            server.warn(f"a round of {count} clients withstands {most} that are Byzantine")
        return most if wanted == "auto" else min(most, int(wanted))

    def _kept(self, count: int, byzantine: int) -> int:
        """Returns how many updates are averaged."""
        return 1


class MultiKrum(Krum):
    """Multi-Krum: the global model moves by the mean of the updates of least score (Blanchard et al. 2017).

    Scores are those of Krum, computed once. The m of least score are averaged with equal weights; m = n - f - 2 as in
    the code of the authors' group, 1 is Krum, and n is FedAvg with `weighting: uniform`, bit for bit.
    """

    version = "1"
    card: ClassVar = Krum.card

    class Params(Krum.Params):
        """Hyperparameters of multi-Krum."""

        keep: int | None = Field(
            None,
            ge=1,
            description="number m of updates that are averaged, at most all of a round; null: n - f - 2",
            source="AggregaThor, the code of the authors' group",
        )

    def _kept(self, count: int, byzantine: int) -> int:
        keep: int | None = self.params.keep
        return count - byzantine - 2 if keep is None else keep


def scores(distances: torch.Tensor, byzantine: int) -> torch.Tensor:
    """Returns each update's sum of its n - f - 2 smallest squared distances to others, `[n]`, of distances `[n, n]`."""
    count = len(distances)
    others = distances[~torch.eye(count, dtype=torch.bool)].view(count, count - 1)
    return others.sort(dim=1).values[:, : count - byzantine - 2].sum(dim=1)


def ranked(score: torch.Tensor, clients: Sequence[int]) -> list[int]:
    """Returns the rows from the least score to the largest; of equal ones the smaller client id comes first."""
    values = score.tolist()
    return sorted(range(len(values)), key=lambda row: (values[row], clients[row]))
