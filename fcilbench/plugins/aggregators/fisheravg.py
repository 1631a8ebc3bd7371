"""FisherAvg: Matena and Raffel 2022, "Merging Models with Fisher-Weighted Averaging"."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import nn

from fcilbench.api.aggregator import Aggregator, No, Request, Traits
from fcilbench.api.client import Client, FisherKind
from fcilbench.api.message import Message
from fcilbench.api.server import Server, Updates
from fcilbench.spec.params import Field, PresetParams, Space
from fcilbench.vectors.fisher import merge, unit


class FisherAvg(Aggregator):
    """Clients send their Fisher with their model; each weight is averaged by how certain the clients are of it.

    theta_g <- sum_k w_k theta_k with w_k = lambda_k (F_k + eps) / sum_j lambda_j (F_j + eps) in each coordinate, F_k
    the mean diagonal Fisher of client k at its own trained model; by default lambda_k is its share of the samples, and
    labels are drawn where Matena and Raffel take the expectation. Buffers are averaged by sample count. Nothing is kept
    between rounds. A client that fits its few classes perfectly has F near 0 and hardly a vote; `normalize: l2`
    mitigates that.
    """

    version = "1"
    traits = Traits(training_modification=True)

    class Params(PresetParams):
        """Hyperparameters of FisherAvg."""

        presets: ClassVar = {
            "original": {"fisher_type": "exact", "lambda_k": "uniform", "normalize": "l2", "epsilon": 1e-6},
            "fed_mammoth": {"fisher_type": "label_prob", "fisher_sum": True, "lambda_k": "uniform", "raw_inputs": True},
        }

        fisher_type: FisherKind = Field("sampled", description="where the labels of the Fisher come from")
        n_fisher_samples: int | None = Field(None, ge=1, description="samples of a drawn subset; none: all")
        lambda_k: Literal["samples", "uniform"] = Field(
            "samples", description="weight of a client beside its Fisher: share of the samples, or equal"
        )
        normalize: Literal["none", "l2"] = Field("none", description="divide each Fisher by its L2 norm first")
        epsilon: float = Field(
            1e-12,
            ge=0,
            description="added to every Fisher; must be far below its typical values",
            space=Space(low=1e-12, high=1e-6, log=True),
        )
        fisher_sum: bool = Field(False, description="sum the Fisher over samples (fed-mammoth) instead of the mean")
        raw_inputs: bool = Field(
            False, description="take the Fisher on inputs that are not normalised, a defect of fed-mammoth"
        )

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines raw inputs for text, which knows no normalisation."""
        if self.params.raw_inputs and request.modality != "vision":
            return No("raw_inputs is about the normalisation of images; set raw_inputs: false for text")
        return None

    def statistics(self, client: Client) -> Message:
        """Sends the mean Fisher `[P]` at the client's own model, or its sum over samples."""
        fisher = client.fisher(self.params.fisher_type, self.params.n_fisher_samples, raw=self.params.raw_inputs)
        return {"fisher": fisher * client.samples if self.params.fisher_sum else fisher}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Merges the trainable part by Fisher weights and the buffers by their mean."""
        parts, epsilon = updates.layout, self.params.epsilon
        fishers = [message["fisher"] for message in updates.statistics]
        if self.params.normalize == "l2":
            fishers = [unit(fisher) for fisher in fishers]
        below = sum(int(torch.count_nonzero(fisher < epsilon)) for fisher in fishers)
        server.log("fisheravg/below_epsilon", below / (len(fishers) * fishers[0].numel()))
        total = sum(updates.samples)
        weights = [n / total if self.params.lambda_k == "samples" else 1.0 / len(fishers) for n in updates.samples]
        server.step(merge(updates.delta[:, parts.trainable], fishers, weights, epsilon), parts.trainable)
        server.step(updates.mean(parts.buffers), parts.buffers)
