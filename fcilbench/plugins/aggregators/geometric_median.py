"""RFA: Pillutla, Kakade and Harchaoui 2022, "Robust Aggregation for Federated Learning"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch

from fcilbench.api import Aggregator, Field, PresetParams, Server, Updates
from fcilbench.vectors.distances import squared_distances
from fcilbench.vectors.sums import weighted_sum

_CODE = "code of the authors (krishnap25/RFA)"


class GeometricMedian(Aggregator):
    """Robust Federated Aggregation: the geometric median of the clients' updates (Pillutla et al. 2022).

    theta <- theta + v with v the minimiser of sum_k a_k ||v - Delta_k|| over the trained parameters `[P]`, a_k = p_k or
    1 / n, by the smoothed Weiszfeld algorithm: from v = sum_k a_k Delta_k,

        b_k = a_k / max(nu, ||v - Delta_k||),    v <- sum_k c_k Delta_k with c_k = b_k / sum_j b_j,

    until the objective changes by less than `tolerance` of itself. As v is always such a mean, the distances between
    updates are all that the steps need; buffers are averaged by the same c_k. Clients with less than half of the weight
    cannot move v arbitrarily far; one with half of it or more is the median, and in many dimensions one with less may
    be, too. `steps: 0` is FedAvg, bit for bit.
    """

    version = "1"
    card: ClassVar = {
        "family": "robust",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "Pillutla et al. 2022, IEEE TSP",
    }

    class Params(PresetParams):
        """Hyperparameters of RFA."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"steps": 4, "nu": 1e-5, "tolerance": 1e-6}}

        steps: int = Field(
            1000,
            ge=0,
            description="Weiszfeld steps of a round at most; 0 is FedAvg",
            source=f"ours: a step costs n^2 operations; {_CODE}: 4",
        )
        nu: float = Field(
            1e-6,
            gt=0,
            description="distance to a client's update below which the distance is smoothed; the scale of updates",
            source=f"the paper; {_CODE}: 1e-5",
        )
        tolerance: float = Field(
            1e-10,
            ge=0,
            description="relative change of the objective at which the steps end",
            source=f"ours: four steps do not forget a large outlier; {_CODE}: 1e-6",
        )
        weighting: Literal["samples", "uniform"] = Field(
            "samples", description="weight a_k of a client: share of the samples, or equal", source="the paper"
        )

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the geometric median of the updates."""
        params = self.params
        distances = squared_distances(updates.delta[:, updates.layout.trainable])
        counts = updates.samples if params.weighting == "samples" else [1] * len(updates.samples)
        shares = torch.tensor(counts, dtype=torch.float64)
        weights, done = weiszfeld(distances, shares / shares.sum(), params.nu, params.steps, params.tolerance)
        server.log("geometric-median/steps", done)
        server.log("geometric-median/largest_weight", float(weights.max()))
        if params.steps and 0 < float(distances.max().sqrt()) <= params.nu:
            server.warn("nu is larger than the distance between any two updates: such a round is FedAvg")
        server.step(weighted_sum(weights, updates.delta))


def weiszfeld(
    distances: torch.Tensor, shares: torch.Tensor, nu: float, steps: int, tolerance: float
) -> tuple[torch.Tensor, int]:
    """Returns c `[n]` with the smoothed geometric median `sum_k c_k x_k`, and the number of steps that it took.

    `distances` are ||x_j - x_k||^2, float64 `[n, n]`; `shares` are the a_k, float64 `[n]`, of sum 1.
    """
    weights, radii = shares, to_mean(distances, shares)
    value = objective(radii, shares, nu)
    for step in range(steps):
        pull = shares / radii.clamp(min=nu)
        weights = pull / pull.sum()
        radii = to_mean(distances, weights)
        before, value = value, objective(radii, shares, nu)
        if before - value <= tolerance * before:
            return weights, step + 1
    return weights, steps


def to_mean(distances: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Returns `||v - x_k||` `[n]` for v = sum_j c_j x_j, sum c = 1, of squared distances `[n, n]`.

    It is the square root of sum_j c_j d_jk - 1/2 sum_ij c_i c_j d_ij, which rounding may leave below 0.
    """
    pulled = distances @ weights
    return (pulled - 0.5 * (weights @ pulled)).clamp(min=0.0).sqrt()


def objective(radii: torch.Tensor, shares: torch.Tensor, nu: float) -> float:
    """Returns sum_k a_k h(r_k) of distances r_k: h(r) = r, and r^2 / (2 nu) + nu / 2 for r < nu. No step raises it."""
    smoothed = torch.where(radii >= nu, radii, radii.square() / (2 * nu) + nu / 2)
    return float(shares @ smoothed)
