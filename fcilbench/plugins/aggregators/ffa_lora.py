"""FFA-LoRA: Sun et al. 2024, "Improving LoRA in Privacy-preserving Federated Learning"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import nn

from fcilbench.api import (
    Aggregator,
    Field,
    Message,
    No,
    Predictors,
    Request,
    Server,
    Space,
    Wire,
    insert_lora,
)
from fcilbench.api import Params as BaseParams
from fcilbench.plugins.aggregators.lora import declined_lora


class FfaLoraParams(BaseParams):
    """Hyperparameters of FFA-LoRA."""

    rank: int = Field(
        8,
        ge=1,
        description="rank r of each layer's product B A",
        source="Sun et al. 2024",
        space=Space(choices=(4, 8, 16, 32)),
    )
    alpha: float = Field(
        8.0,
        gt=0,
        description="the product is scaled by alpha / rank, which only rescales the learning rate of B",
        source="Sun et al. 2024",
    )
    tasks: Literal["shared", "mean", "sum"] = Field(
        "shared",
        description="one B for all tasks; or for each task an A and a B of its own, trained from the pretrained model, "
        "whose products are averaged or added up in the deployed one",
    )


class FfaLora(Aggregator):
    """FFA-LoRA: low-rank adapters whose random A is frozen, so that averaging B averages the products exactly.

    Each linear layer of the frozen backbone computes (W + (alpha / r) B A) x; A `[r, in]` is drawn once, equal for all,
    and is never trained or sent; B `[out, r]` starts at 0 and is trained with the head, and both are averaged. Then
    sum_k p_k (B_k A) = (sum_k p_k B_k) A, where a mean of both factors is another matrix (Sun et al. 2024).

    `tasks` is what a stream of tasks adds: with `shared` one B goes on, as by the backbone's option `adapter: {use:
    ffa-lora}`. With `mean` and `sum` task t has A_t and B_t of its own and is trained from W alone; W + (alpha / r)
    sum_s B_s A_s is deployed, divided by the number of tasks for `mean`.
    """

    version = "1"
    card: ClassVar = {
        "family": "adapters",
        "trained": "one low-rank factor of each layer, and the head",
        "travels": "what is trained",
        "memory": "nothing",
        "source": "Sun et al. 2024, ICLR",
    }
    lr_range = (1e-4, 0.1)

    class Params(FfaLoraParams):
        """Hyperparameters of FFA-LoRA."""

    params: FfaLoraParams

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Freezes the backbone and gives each of its linear layers a frozen A and a B, or one of each for each task."""
        extractor = network.get_submodule("extractor")
        if declined := declined_lora("FFA-LoRA", extractor):
            return declined
        tasks = None if self._shared else len(request.tasks)
        insert_lora(extractor, self.params.rank, self.params.alpha, train_a=False, tasks=tasks)
        return None

    @property
    def _shared(self) -> bool:
        return self.params.tasks == "shared"

    def wire(self, server: Server) -> Wire:
        """Trains and sends the B of the current task and the head."""
        return Wire() if self._shared else Wire(train=(f"*.lora_B_{server.task.index}", "head.*"))

    def begin(self, server: Server) -> None:
        """Starts with the products of no task."""
        server.state["past"] = {}

    def begin_task(self, server: Server) -> None:
        """Takes the B of the task before back to 0: it is kept, and the new task starts from the pretrained model."""
        for name in server.state["past"]:
            span = server.layout.piece(name).span
            server.step(-server.vector[span], span)

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Keeps the task's B, which the deployed adapters sum up or average."""
        server.state["past"] |= self._present(server)

    def _present(self, server: Server) -> Mapping[str, torch.Tensor]:
        """Returns the B of the current task by name; none if no client has trained it, or all tasks share one."""
        if self._shared:
            return {}
        pieces = server.layout.select([f"*.lora_B_{server.task.index}"])
        found = {piece.name: server.vector[piece.span].clone() for piece in pieces}
        return found if any(bool(b.any()) for b in found.values()) else {}

    def predictors(self, server: Server) -> Predictors:
        """Answers with the products of all tasks so far; during a task its present one counts as well."""
        return replace(super().predictors(server), modules={"global": lambda: self._deployed(server)})

    def _deployed(self, server: Server) -> torch.Tensor:
        products = {**server.state["past"], **self._present(server)}
        tasks = {name.rpartition("_")[2] for name in products}
        vector = server.vector.clone()
        for name, b in products.items():
            scale = 1.0 / len(tasks) if self.params.tasks == "mean" else 1.0
            vector[server.layout.piece(name).span] = (scale * b).flatten()
        return vector

    def export(self, server: Server) -> Message:
        """Returns the deployed vector; A is drawn from the train seed."""
        return {"theta": self._deployed(server)}
