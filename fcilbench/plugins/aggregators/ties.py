"""TIES-Merging: Yadav et al. 2023, "TIES-Merging: Resolving Interference When Merging Models"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator

from fcilbench.api import Field, Message, Predictors, PresetParams, Server, Space, Updates
from fcilbench.plugins.aggregators.task_vectors import TaskVectorMethod, TaskVectorParams, one_model
from fcilbench.vectors.module import Basis
from fcilbench.vectors.ties import merge_plain, merge_signs


class TiesParams(TaskVectorParams, PresetParams):
    """Hyperparameters of TIES-Merging."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"weighting": "uniform", "keep": 0.2, "lam": 1.0}}

    over: Literal["clients", "tasks"] = Field(
        "clients", description="what is merged: the clients' updates in each round, or the tasks' vectors"
    )
    keep: float = Field(
        0.2,
        gt=0,
        le=1,
        description="fraction (not per cent) of largest entries that each vector keeps",
        source="README of Yadav et al. 2023 (topk20)",
        space=Space(low=0.05, high=1.0, log=True),
    )
    elect: Literal["sign", "off"] = Field(
        "sign", description="mean of the entries with the elected sign, or of all trimmed entries"
    )
    lam: float | None = Field(
        None,
        gt=0,
        description="scale lambda of the merged vector; null: 0.4 over clients, 1 over tasks",
        source="fed-mammoth over clients; Yadav et al. 2023 without validation data over tasks",
        space=Space(low=0.1, high=2.5, log=True),
    )
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weights of the clients in election and mean; tasks weigh alike"
    )

    @property
    def scale(self) -> float:
        """Returns lambda, the factor of the merged vector; its default depends on `over`."""
        return self.lam if self.lam is not None else 0.4 if self.over == "clients" else 1.0

    @model_validator(mode="after")
    def _no_idle_option(self) -> Self:
        """Refuses options of tasks over clients, and of clients over tasks."""
        if self.over == "clients":
            for option in ("task_start", "storage"):
                if getattr(self, option) != type(self).model_fields[option].default:
                    raise ValueError(f"{option} has no effect here: it needs over: tasks")
        elif self.weighting == "uniform" and self.preset == "default":
            raise ValueError("weighting: uniform has no effect here: it needs over: clients")
        return self


class Ties(TaskVectorMethod):
    """TIES-Merging: trim each vector, elect a sign for each weight, average what agrees with it.

    Of vectors tau_1 .. tau_N of the backbone `[P]` each keeps its `keep` fraction of largest magnitude; gamma_p =
    sign(sum_i w_i tau_ip); m_p is the mean over those i with tau_ip gamma_p > 0, weighted by w_i, and 0 without any.
    The model moves by lambda m (Yadav et al. 2023). Over clients, tau_k = theta_k - theta in each round and w_k = n_k
    or 1; over tasks, rounds are FedAvg's, tau_t = theta^(t) - theta_pre, w_t = 1, and theta_pre + lambda m is deployed.
    The head is FedAvg's in both. The source merges finished models once, has w_i = 1, and keeps one entry too many.
    """

    version = "1"
    card: ClassVar = {
        "family": "merging",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "Yadav et al. 2023, NeurIPS",
    }
    breaks: ClassVar = {
        "one-client": "a round steps by lambda times the largest entries of the client's update",
        "identical-clients": "the merge of equal updates is trimmed and scaled by lambda",
    }

    class Params(TiesParams):
        """Hyperparameters of TIES-Merging."""

    params: TiesParams

    def _merges_tasks(self) -> bool:
        return self.params.over == "tasks"

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Merges the backbone, over clients; averages head and buffers."""
        step = updates.mean()
        if not self._merges_tasks():
            backbone = updates.layout.backbone
            weights = updates.samples if self.params.weighting == "samples" else (1,) * len(updates.samples)
            merged = self._merge(list(updates.backbone), weights, server)
            mean = torch.linalg.vector_norm(step[backbone], dtype=torch.float64)
            size = torch.linalg.vector_norm(merged, dtype=torch.float64)
            server.log("ties/step_ratio", float(size / mean.clamp(min=1e-300)))  # to FedAvg's step
            step[backbone] = merged
        server.step(step)

    def _merge(self, vectors: Basis, weights: Sequence[float], server: Server) -> torch.Tensor:
        merge = merge_signs if self.params.elect == "sign" else merge_plain
        size, device = server.layout.backbone.stop, server.vector.device
        return self.params.scale * merge(vectors, weights, self.params.keep, size=size, device=device)

    def predictors(self, server: Server) -> Predictors:
        """Deploys the global model, or over tasks theta_pre + lambda m."""
        return one_model(lambda: self._deployed(server)) if self._merges_tasks() else super().predictors(server)

    def _deployed(self, server: Server) -> torch.Tensor:
        vectors, nothing = self._learned(server), torch.zeros_like(server.vector[server.layout.backbone])
        return self._model(server, self._merge(vectors, (1,) * len(vectors), server) if vectors else nothing)

    def export(self, server: Server) -> Message:
        """Returns the deployed vector."""
        return {"theta": self._deployed(server)} if self._merges_tasks() else super().export(server)
