"""LoRM: Salami et al. 2025, "Closed-form merging of parameter-efficient modules for Federated Continual Learning"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from fcilbench.api import (
    Aggregator,
    Client,
    Field,
    Layout,
    Message,
    Module,
    No,
    Predictors,
    PresetParams,
    Request,
    Server,
    Space,
    Updates,
    Wire,
    insert_lora,
    pack_symmetric,
    unpack_symmetric,
)
from fcilbench.plugins.aggregators.lora import declined_lora
from fcilbench.vectors.regmean import decay_off_diagonal, regmean, regmean_plain

_GRAM = "gram/"
_A, _B = ".lora_A", ".lora_B"
_RIDGE = 1e-8
"""Of the mean eigenvalue of A G A^T, added to its diagonal: a rank above that of the inputs makes it singular."""


class LoRM(Aggregator):
    """Low-rank Regression Mean: LoRA factors are trained by turns and merged by least squares on the clients' inputs.

    Each linear layer of the backbone computes (W0 + B A) x with W0 `[out, in]` frozen, A `[r, in]` and B `[out, r]`. In
    even rounds clients train B and share A, in odd rounds they train A and share B; the head is trained in every round.
    With the Gram matrices G_i = X_i^T X_i `[in, in]` of the layer's inputs X_i `[tokens, in]`, the merged layer
    reproduces all clients' outputs best (Salami et al. 2025), i.e. minimises sum_i ||X_i (B A - B_i A_i)^T||^2, with

        B = (sum_i B_i A G_i) A^T (A (sum_i G_i) A^T)^-1   in a round of B,
        A = (sum_i A_i G_i) (sum_i G_i)^-1                 in a round of A.

    Every task starts from W0 with new factors. At its end the same regression merges it with the earlier tasks:
    W = W0 + (sum_t B_t A_t G_t) (sum_t G_t)^-1, G_t summed over clients. This dense W is deployed; it is never trained
    and never sent. Clients train with the masked cross-entropy.
    """

    version = "3"  # a round of B knows the rounding of the Grams that were sent
    card: ClassVar = {
        "family": "adapters",
        "trained": "one low-rank factor of each layer in turn, and the head",
        "travels": "what is trained; a Gram matrix of each layer",
        "memory": "nothing",
        "source": "Salami et al. 2025, ICLR",
    }
    lr_range = (1e-4, 0.1)

    class Params(PresetParams):
        """Hyperparameters of LoRM."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"solver": "plain"}}

        rank: int = Field(
            16, ge=1, description="rank r of each layer's product B A", source="code of Salami et al. 2025"
        )
        rate_a: float = Field(
            1.0,
            ge=0,
            description="learning rate of A as a multiple of the protocol's",
            space=Space(low=0.1, high=10, log=True),
        )
        rate_b: float = Field(
            1.0,
            ge=0,
            description="learning rate of B as a multiple of the protocol's",
            space=Space(low=0.1, high=10, log=True),
        )
        gamma_backbone: float = Field(
            0.0,
            ge=0,
            le=1,
            description="off-diagonal factor of the Grams of backbone layers; 0 sends diagonals only",
            source="commands of Salami et al. 2025",
        )
        gamma_head: float = Field(
            0.5,
            ge=0,
            le=1,
            description="off-diagonal factor of the head's Gram",
            source="commands of Salami et al. 2025",
            space=Space(low=0.0, high=1.0),
        )
        solver: Literal["residual", "plain"] = Field(
            "residual", description="around the mean, or the published form, which zeroes directions without inputs"
        )

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Freezes the backbone and gives each of its linear layers the factors A and B."""
        extractor = network.get_submodule("extractor")
        if declined := declined_lora("LoRM", extractor):
            return declined
        insert_lora(extractor, self.params.rank, alpha=self.params.rank)
        return None

    # ---------------------------------------------------------------- clients

    def rates(self) -> Mapping[str, float]:
        """Returns the learning-rate factors of A and B."""
        return {f"*{_A}": self.params.rate_a, f"*{_B}": self.params.rate_b}

    def statistics(self, client: Client) -> Message:
        """Sends the Grams of all adapted layers and of the head, under the client's own model W0 + B_i A_i."""
        return self._grams(client)

    def task_statistics(self, client: Client) -> Message:
        """Sends the Grams of all adapted layers under the task's final model W0 + B A."""
        return {name: gram for name, gram in self._grams(client).items() if name != f"{_GRAM}head"}

    def _grams(self, client: Client) -> Message:
        """Returns Grams in float32: the upper triangle, or for gamma = 0 the diagonal."""
        with client.low_precision():
            grams = client.grams(lambda name: self._gamma(name) == 0.0)
        totals = {_GRAM + name: gram.total.float() for name, gram in grams.items()}
        return {name: total if total.dim() == 1 else pack_symmetric(total) for name, total in totals.items()}

    def _gamma(self, layer: str) -> float:
        gamma: float = self.params.gamma_head if layer == "head" else self.params.gamma_backbone
        return gamma

    # ---------------------------------------------------------------- server

    def wire(self, server: Server) -> Wire:
        """Trains B in even rounds of a task, A in odd ones, and the head; buffers travel as always."""
        return Wire(train=(f"*{_A if _trains_a(server) else _B}", "head.*"), up=("*",))

    def begin_task(self, server: Server) -> None:
        """Draws each A from U(-1 / sqrt(in), 1 / sqrt(in)) and sets B to 0: the task starts from W0."""
        for layer in adapted(server.layout):
            a, b = server.layout.piece(layer + _A), server.layout.piece(layer + _B)
            bound = a.shape[1] ** -0.5
            drawn = torch.from_numpy(server.random(f"lorm/{layer}").uniform(-bound, bound, a.shape))
            server.step(drawn.to(server.vector).flatten() - server.vector[a.span], a.span)
            server.step(-server.vector[b.span], b.span)
        server.state["open"] = True

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Solves for the trained factors and the head's weight in float64; the head's bias and buffers are averaged."""
        direction = updates.mean()
        amplified = direction.new_zeros(())
        for layer in (key.removeprefix(_GRAM) for key in updates.statistics[0] if key.startswith(_GRAM)):
            trained = ".weight" if layer == "head" else _A if _trains_a(server) else _B
            piece, gamma = updates.layout.piece(layer + trained), self._gamma(layer)
            # A triangle's small eigenvalues are rounding, also of A G A^T; a diagonal's entries are all exact.
            rounded = updates.statistics[0][_GRAM + layer].dtype if gamma > 0 else None
            grams = self._received(layer, updates.statistics, server)
            if trained == _B:
                a, gamma = _factor(server, layer + _A), 1.0
                grams = (projected_gram(gram, a, self._gamma(layer)) for gram in grams)
            start = server.vector[piece.span].view(piece.shape)
            deltas = updates.delta[:, piece.span].reshape(-1, *piece.shape)
            solved = self._solve(start, deltas, grams, updates.weights, gamma, rounded=rounded)
            direction[piece.span] = solved.flatten()
            largest = torch.stack(updates.delta[:, piece.span].aminmax()).abs().max()
            amplified = torch.maximum(amplified, direction[piece.span].abs().max() / largest.clamp(min=1e-30))
        server.step(direction)
        server.log("lorm/amplification", float(amplified))  # largest merged entry / largest client's, of any layer

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Merges the task's deltas B A with those of earlier tasks, and keeps the sums of the Grams."""
        server.state["open"] = False
        if not statistics:
            return
        messages, state = list(statistics.values()), server.state
        merged, known = state.setdefault("merged", {}), state.setdefault("grams", {})
        state["tasks"] = count = state.get("tasks", 0) + 1
        weights = torch.tensor([(count - 1) / count, 1 / count], dtype=torch.float64)
        for layer in (key.removeprefix(_GRAM) for key in messages[0]):
            frozen = server.frozen(f"{layer}.weight")
            delta = _factor(server, layer + _B) @ _factor(server, layer + _A)
            grams = self._received(layer, messages, server)
            first = next(grams)
            gram = sum((each.double() for each in grams), first.double()).to(first.dtype)
            if layer in merged:
                pair = torch.stack([(merged[layer] - frozen).double(), delta])
                delta = self._solve(
                    torch.zeros_like(delta), pair, [known[layer], gram], weights.to(delta), self._gamma(layer)
                )
                gram = known[layer] + gram
            merged[layer], known[layer] = frozen + delta.to(frozen), gram

    def _received(self, layer: str, messages: Sequence[Message], server: Server) -> Iterator[torch.Tensor]:
        """Yields the clients' Grams of a layer, `[in, in]`, or diagonals `[in]` in float64.

        A sum of squares has no cancellation, so a small entry of a diagonal is as exact as a large one.
        """
        size = server.layout.features if layer == "head" else server.layout.piece(layer + _A).shape[1]
        grams = (message[_GRAM + layer] for message in messages)
        return (gram.double() if len(gram) == size else unpack_symmetric(gram, size) for gram in grams)

    def _solve(
        self,
        start: torch.Tensor,
        deltas: torch.Tensor,
        grams: Iterable[torch.Tensor],
        weights: torch.Tensor,
        gamma: float,
        *,
        rounded: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Returns the merged update of a matrix from those of the clients: around their mean, or as published."""
        if self.params.solver == "residual":
            return regmean(deltas, grams, weights, gamma, rounded)
        return regmean_plain(deltas, grams, gamma, start, rounded) - start

    # ---------------------------------------------------------------- inference

    def predictors(self, server: Server) -> Predictors:
        """Answers with the merged dense weights and the one head."""
        return replace(super().predictors(server), modules={"global": lambda: _deployed(server)})

    def export(self, server: Server) -> Message:
        """Returns the state vector without factors, and the merged dense weights by their names in the network."""
        module = _deployed(server)
        return {"theta": module.vector, **module.frozen}


def projected_gram(gram: torch.Tensor, a: torch.Tensor, gamma: float) -> torch.Tensor:
    """Returns A G A^T `[r, r]`, float64, of a Gram `[in, in]` or its diagonal `[in]` and the factor A `[r, in]`.

    It is the Gram of the inputs of B, which are A x: a round of B is RegMean on it.
    """
    wide = gram.double()
    inner = a * wide @ a.T if wide.dim() == 1 else a @ decay_off_diagonal(wide, gamma) @ a.T
    return inner + _RIDGE * inner.diagonal().mean() * torch.eye(len(a), dtype=a.dtype, device=a.device)


def adapted(layout: Layout) -> list[str]:
    """Returns the names of the layers that have factors."""
    return [piece.name.removesuffix(_A) for piece in layout.select([f"*{_A}"])]


def _trains_a(server: Server) -> bool:
    return server.round % 2 == 1


def _factor(server: Server, name: str) -> torch.Tensor:
    """Returns a factor of the global model in float64."""
    piece = server.layout.piece(name)
    return server.vector[piece.span].view(piece.shape).double()


def _deployed(server: Server) -> Module:
    """Returns the model with the merged weights in place of W0, and without factors.

    During a task, of which there is no Gram yet, its B A counts as one of the t + 1 tasks in a plain mean.
    """
    vector, state = server.vector.clone(), server.state
    weights = {f"{layer}.weight": weight for layer, weight in state.get("merged", {}).items()}
    if state.get("open"):
        done = state.get("tasks", 0)
        for layer in adapted(server.layout):
            frozen = server.frozen(f"{layer}.weight")
            own = (_factor(server, layer + _B) @ _factor(server, layer + _A)).to(frozen)
            before = weights.get(f"{layer}.weight", frozen)
            weights[f"{layer}.weight"] = frozen + (done * (before - frozen) + own) / (done + 1)
    for piece in server.layout.select([f"*{_A}", f"*{_B}"]):
        vector[piece.span] = 0.0
    return Module(vector, weights)
