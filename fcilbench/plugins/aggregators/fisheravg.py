"""FisherAvg: Matena and Raffel 2022, "Merging Models with Fisher-Weighted Averaging"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch

from fcilbench.api import Aggregator, Client, Field, FisherKind, Message, PresetParams, Server, Space, Updates

_CHUNK = 1 << 20


class FisherAvg(Aggregator):
    """Fisher-weighted averaging: merges each weight by how much Fisher information the clients have of it.

    theta_g <- sum_k w_k theta_k with w_k = lambda_k (F_k + eps) / sum_j lambda_j (F_j + eps) in each coordinate
    (Matena and Raffel 2022), F_k the mean diagonal Fisher of client k at its own trained model; by default
    lambda_k is its share of the samples, and labels are drawn where they take the expectation. Buffers are averaged by
    sample count. Nothing is kept between rounds. A client that fits its few classes perfectly has F near 0 and hardly a
    vote; `normalize: l2` mitigates that.
    """

    version = "1"
    card: ClassVar = {
        "family": "merging",
        "trained": "the whole model",
        "travels": "the model; a diagonal Fisher",
        "memory": "nothing",
        "source": "Matena and Raffel 2022, NeurIPS",
    }

    class Params(PresetParams):
        """Hyperparameters of FisherAvg."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"fisher_type": "exact", "weighting": "uniform", "normalize": "l2", "epsilon": 1e-6}
        }

        fisher_type: FisherKind = Field("sampled", description="where the labels of the Fisher come from")
        n_fisher_samples: int | None = Field(None, ge=1, description="samples of a drawn subset; none: all")
        weighting: Literal["samples", "uniform"] = Field(
            "samples", description="weight lambda_k of a client beside its Fisher: share of the samples, or equal"
        )
        normalize: Literal["none", "l2"] = Field("none", description="divide each Fisher by its L2 norm first")
        epsilon: float = Field(
            1e-12,
            ge=0,
            description="added to every Fisher; must be far below its typical values",
            space=Space(low=1e-12, high=1e-6, log=True),
        )

    def statistics(self, client: Client) -> Message:
        """Sends the mean Fisher `[P]` at the client's own model."""
        return {"fisher": client.fisher(self.params.fisher_type, self.params.n_fisher_samples)}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Merges the trainable part by Fisher weights and the buffers by their mean."""
        parts, epsilon = updates.layout, self.params.epsilon
        fishers = [message["fisher"] for message in updates.statistics]
        norms = [norm(fisher) if self.params.normalize == "l2" else 1.0 for fisher in fishers]
        below = sum(int(torch.count_nonzero(f / size < epsilon)) for f, size in zip(fishers, norms, strict=True))
        server.log("fisheravg/below_epsilon", below / (len(fishers) * fishers[0].numel()))
        total = sum(updates.samples)
        weights = [n / total if self.params.weighting == "samples" else 1.0 / len(fishers) for n in updates.samples]
        server.step(merge(updates.delta[:, parts.trainable], fishers, weights, epsilon, norms), parts.trainable)
        server.step(updates.mean(parts.buffers), parts.buffers)


def norm(fisher: torch.Tensor) -> float:
    """Returns the L2 norm of a Fisher, or 1 for the zero Fisher, which is to stay as it is."""
    return math.sqrt(math.fsum(float(chunk.double().square().sum()) for chunk in torch.split(fisher, _CHUNK))) or 1.0


def merge(
    deltas: torch.Tensor,
    fishers: Sequence[torch.Tensor],
    weights: Sequence[float],
    epsilon: float,
    norms: Sequence[float] | None = None,
) -> torch.Tensor:
    """Returns per coordinate `sum_k w_k delta_k` with `w_k = l_k (F_k + eps) / sum_j l_j (F_j + eps)`, in float64.

    Updates are `[N, P]`, Fishers F_k `[P]`, divided by their `norms` first; `weights` are the l_k > 0. What is below 0
    in a Fisher, as in no honest one, counts as 0. Where all F_k + eps are 0, the weights are `l_k / sum_j l_j`. Each
    coordinate `[P]` lies between the smallest and the largest update.
    """
    factors = torch.tensor(weights, dtype=torch.float64, device=deltas.device)[:, None]
    merged = torch.empty_like(deltas[0])
    step = max(1, _CHUNK // len(deltas))
    for start in range(0, merged.numel(), step):
        part = slice(start, start + step)
        scaled = [fisher[part] / size for fisher, size in zip(fishers, norms or [1.0] * len(fishers), strict=True)]
        precision = factors * (torch.stack(scaled).double().clamp(min=0.0) + epsilon)
        total = precision.sum(dim=0)
        share = torch.where(total > 0, precision / total, factors / factors.sum()).clamp_(0.0, 1.0)
        merged[part] = (share * deltas[:, part]).sum(dim=0)
    return merged
