"""FedEx-LoRA: Singhal et al. 2025, "FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of LLMs".

The title of the ACL paper ends in "of Large Language Models".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    Aggregator,
    Field,
    LoraLinear,
    No,
    PresetParams,
    Request,
    Server,
    Space,
    Updates,
    Wire,
    insert_lora,
    lora_layers,
)
from fcilbench.plugins.aggregators.lora import declined_lora
from fcilbench.vectors.sums import client_weights, weighted_sum

_A, _B, _RESIDUAL = ".lora_A", ".lora_B", ".residual"


class FedExLoraParams(PresetParams):
    """Hyperparameters of FedEx-LoRA."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"alpha": 8.0, "weighting": "uniform"}}

    rank: int = Field(
        4,
        ge=1,
        description="rank r of each layer's product B A",
        source="Singhal et al. 2025 on GLUE",
        space=Space(choices=(2, 4, 8, 16, 32)),
    )
    alpha: float | None = Field(None, gt=0, description="the product is scaled by alpha / rank; null: not scaled")
    residual_rank: int | None = Field(
        None, ge=0, description="rank to which the residual is cut; null: exact; 0: no residual, so FedAvg of A and B"
    )
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weights p_k by sample count, or equal for all clients with data"
    )


class ResidualLora(LoraLinear):
    """A LoRA layer with a dense residual `[out, in]` beside its frozen weight, which the server alone moves."""

    residual: nn.Parameter

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in]` to `[..., out]` by W + residual + (alpha / rank) B A."""
        a, b = self.factors()
        whole = F.linear(inputs, self.weight + self.residual, self.bias)
        return whole + F.linear(self.scale * F.linear(inputs, a), b)


class FedExLora(Aggregator):
    """FedEx-LoRA: averages the factors A and B, and adds what the mean of the products has beyond them to the weight.

    Clients train A_k `[r, in]`, B_k `[out, r]` and the head from (W + R + (alpha / r) B A) x with W frozen and R the
    residual `[out, in]`. The server (Singhal et al. 2025): A = sum_k p_k A_k, B = sum_k p_k B_k, and

        R <- R + (alpha / r) sum_k p_k (B_k - B)(A_k - A),

    which is sum_k p_k B_k A_k - B A without its cancellation. So W + R + (alpha / r) B A is exactly the mean of the
    clients' layers, while training goes on at rank r. The sum has rank (N - 1) r at most. The head is averaged. The
    source weighs clients alike. One adapter goes through all tasks: nothing in the method is about forgetting.
    """

    version = "1"
    card: ClassVar = {
        "family": "adapters",
        "trained": "a low-rank adapter of each layer, and the head",
        "travels": "what is trained; down also a dense residual of each layer",
        "memory": "nothing",
        "source": "Singhal et al. 2025, ACL",
    }
    lr_range = (1e-4, 0.1)

    class Params(FedExLoraParams):
        """Hyperparameters of FedEx-LoRA."""

    params: FedExLoraParams

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Freezes the backbone and gives each of its linear layers factors and a residual."""
        extractor = network.get_submodule("extractor")
        if declined := declined_lora("FedEx-LoRA", extractor):
            return declined
        insert_lora(extractor, self.params.rank, self.params.alpha or self.params.rank)
        if self.params.residual_rank != 0:
            for layer in lora_layers(extractor).values():
                layer.__class__ = ResidualLora
                layer.register_parameter("residual", nn.Parameter(torch.zeros_like(layer.weight)))
        return None

    def wire(self, server: Server) -> Wire:
        """Trains and sends factors and head; the residual goes down alone."""
        return Wire(train=("*.lora_*", "head.*"))

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages factors and head, and moves the residuals."""
        options = self.params
        scale = (options.alpha or options.rank) / options.rank
        weights = client_weights(updates.weights, options.weighting)
        counts = updates.samples if options.weighting == "samples" else (1,) * len(updates.samples)
        shares = torch.tensor(counts, dtype=torch.float64, device=updates.delta.device) / sum(counts)
        step = weighted_sum(weights, updates.delta)
        beyond, whole = torch.zeros(2, dtype=torch.float64, device=step.device)
        for piece in updates.layout.select([f"*{_RESIDUAL}"]):
            name = piece.name.removesuffix(_RESIDUAL)
            factors = (updates.layout.piece(name + end) for end in (_A, _B))
            a, b = ((server.vector[p.span] + updates.delta[:, p.span]).view(-1, *p.shape).double() for p in factors)
            left, right = residual_factors(a, b, shares)
            residual = left @ right
            beyond += residual.square().sum()
            whole += torch.einsum("n,nor,nri->oi", shares, b, a).square().sum()
            if options.residual_rank is not None:
                residual = best_of_rank(left, right, options.residual_rank)
            step[piece.span] = (scale * residual).flatten().to(step)
        if options.residual_rank != 0:
            # ||R||_F / ||sum_k p_k B_k A_k||_F over all layers: what the mean of the factors alone loses.
            server.log("fedex/residual_share", float((beyond / whole.clamp(min=1e-300)).sqrt()))
        server.step(step)


def residual_factors(a: torch.Tensor, b: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns L `[out, N r]` and M `[N r, in]` with L M = sum_k p_k B_k A_k - B A of the means B and A.

    That is sum_k p_k (B_k - B)(A_k - A), of rank (N - 1) r at most, and 0 for one client.

    Args:
        a: A_k, float64 `[N, r, in]`.
        b: B_k, float64 `[N, out, r]`.
        weights: p_k, float64 `[N]`, of sum 1.
    """
    shares = weights[:, None, None]
    left = shares * (b - (shares * b).sum(dim=0))
    return left.transpose(0, 1).flatten(1), (a - (shares * a).sum(dim=0)).flatten(0, 1)


def best_of_rank(left: torch.Tensor, right: torch.Tensor, rank: int) -> torch.Tensor:
    """Returns the matrix of a rank that is nearest to a product `left @ right` (Eckart and Young 1936)."""
    outer, upper = torch.linalg.qr(left)
    inner, lower = torch.linalg.qr(right.T)
    u, values, v = torch.linalg.svd(upper @ lower.T)
    nearest: torch.Tensor = outer @ (u[:, :rank] * values[:rank]) @ v[:rank] @ inner.T
    return nearest
