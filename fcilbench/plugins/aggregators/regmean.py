"""RegMean: Jin et al. 2023, "Dataless Knowledge Fusion by Merging Weights of Language Models"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from fcilbench.api import (
    Aggregator,
    Client,
    Field,
    Message,
    Piece,
    PresetParams,
    Server,
    Space,
    Updates,
    lora_layers,
    merge_adapters,
    pack_symmetric,
    unpack_symmetric,
)
from fcilbench.vectors.regmean import decay_off_diagonal, regmean, regmean_plain
from fcilbench.vectors.sums import client_weights, weighted_sum

_GRAM = "gram/"


class RegMean(Aggregator):
    """Regression Mean: merges every linear layer by least squares on the clients' own inputs, averages the rest.

    W = (sum_k W_k G_k) (sum_k G_k)^+ (Jin et al. 2023) with W_k `[out, in]` and the Gram matrix G_k = X_k^T X_k
    `[in, in]` of the layer's inputs X_k `[tokens, in]`, its off-diagonal entries times gamma. Solved around FedAvg by
    default (`solver`), which differs only in null directions. Clients train with the masked cross-entropy and send the
    Grams beside the model; layers that share one input still send one each.

    On low-rank adapters the products B_k A_k are merged by the Grams of the frozen layer's inputs and factorised again
    (`fcilbench.vectors.lora`). Where A is frozen and equal for all, B is merged exactly by A G_k A^T `[rank, rank]`,
    and only that is sent.
    """

    version = "2"
    card: ClassVar = {
        "family": "merging",
        "trained": "the whole model",
        "travels": "the model; a Gram matrix of each linear layer",
        "memory": "nothing",
        "source": "Jin et al. 2023, ICLR",
    }

    class Params(PresetParams):
        """Hyperparameters of RegMean."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"gram_norm": "mean", "solver": "plain", "weighting": "uniform"}
        }

        gamma_backbone: float = Field(
            0.1,
            ge=0,
            le=1,
            description="off-diagonal factor of the Grams of backbone layers; 0 sends diagonals only",
            source="code of Jin et al. 2023 (their text: 0.9); Kim and Do 2026: 0.5 on CIFAR-100 and text, else 0.1",
            space=Space(low=0.0, high=1.0),
        )
        gamma_head: float = Field(
            0.1,
            ge=0,
            le=1,
            description="off-diagonal factor of the head's Gram",
            source="as gamma_backbone",
            space=Space(low=0.0, high=1.0),
        )
        gram_norm: Literal["sum", "mean"] = Field(
            "sum", description="Grams summed over all tokens, so that larger clients weigh more, or divided by them"
        )
        solver: Literal["residual", "plain"] = Field(
            "residual", description="around FedAvg, or the published form, which zeroes null directions"
        )
        head: Literal["regmean", "fedavg"] = Field("regmean", description="how the head's weight is merged")
        weighting: Literal["samples", "uniform"] = Field(
            "samples", description="weights of all other parameters: by sample count, or equal"
        )

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends each layer's Gram in float32: the upper triangle, or for gamma = 0 the diagonal."""
        grams = client.grams(lambda name: self._gamma(name) == 0.0)
        if self.params.head == "fedavg":
            del grams["head"]
        mean = self.params.gram_norm == "mean"
        totals = {name: gram.total / gram.rows if mean else gram.total for name, gram in grams.items()}
        for name, layer in lora_layers(client.network).items():
            if not client.net.layout.select([f"{name}.lora_A*"]):
                gram = _whole(totals.pop(name), self._gamma(name))
                for end in layer.rows:
                    a = layer.get_parameter(f"lora_A{end}").detach().to(gram)
                    totals[f"{name}.lora_B{end}"] = a @ gram @ a.T
        return {_GRAM + name: _pack(total.float()) for name, total in totals.items()}

    def _gamma(self, layer: str) -> float:
        gamma: float = self.params.gamma_head if layer == "head" else self.params.gamma_backbone
        return gamma

    # ---------------------------------------------------------------- server

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Solves one layer at a time in float64; biases, norms, embeddings, convolutions and buffers are averaged."""
        weights = client_weights(updates.weights, self.params.weighting)
        direction = weighted_sum(weights, updates.delta)
        layers = [key.removeprefix(_GRAM) for key in updates.statistics[0] if key.startswith(_GRAM)]
        amplified = direction.new_zeros(())
        for layer in layers:
            for piece in updates.layout.select([f"{layer}.weight", layer]):
                direction[piece.span] = self._merge(layer, piece, updates, weights, server).flatten()
                largest = torch.stack(updates.delta[:, piece.span].aminmax()).abs().max()
                amplified = torch.maximum(amplified, direction[piece.span].abs().max() / largest.clamp(min=1e-30))
        solve = partial(self._solve, updates.statistics, weights)
        lost = merge_adapters(direction, server.vector, updates.delta, updates.layout, solve)
        if lost is not None:
            server.log("regmean/lora_lost", lost)  # share of squared norm, largest of any adapter
        server.step(direction)
        server.log("regmean/layers", len(layers))
        server.log("regmean/amplification", float(amplified))  # largest merged entry / largest client's, of any layer

    def _merge(self, layer: str, piece: Piece, updates: Updates, weights: torch.Tensor, server: Server) -> torch.Tensor:
        """Returns the merged update `[out, in]` of one layer."""
        deltas = updates.delta[:, piece.span].reshape(-1, *piece.shape)
        start = server.vector[piece.span].view(piece.shape) if self.params.solver == "plain" else 0.0
        return self._solve(updates.statistics, weights, layer, deltas, start) - start

    def _solve(
        self,
        statistics: Sequence[Message],
        weights: torch.Tensor,
        layer: str,
        rows: torch.Tensor,
        start: torch.Tensor | float = 0.0,
    ) -> torch.Tensor:
        """Merges the clients' matrices `[N, out, in]` by the Grams of a layer."""
        gamma = 1.0 if ".lora_B" in layer else self._gamma(layer)  # clients send that one with gamma in it
        grams = (_unpack(message[_GRAM + layer], rows.shape[2]) for message in statistics)
        if self.params.solver == "residual":
            return regmean(rows, grams, weights.to(rows), gamma)
        return regmean_plain(rows, grams, gamma, start)


def _pack(total: torch.Tensor) -> torch.Tensor:
    return total if total.dim() == 1 else pack_symmetric(total)


def _whole(total: torch.Tensor, gamma: float) -> torch.Tensor:
    return torch.diag(total) if total.dim() == 1 else decay_off_diagonal(total, gamma)


def _unpack(sent: torch.Tensor, size: int) -> torch.Tensor:
    return sent if len(sent) == size else unpack_symmetric(sent, size)
