"""CCVR: classifier calibration with virtual representations.

Luo et al. 2021, "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator

from fcilbench.api.aggregator import Aggregator, Traits
from fcilbench.api.client import Client
from fcilbench.api.message import Message, pack_symmetric, unpack_symmetric
from fcilbench.api.server import Server, Updates
from fcilbench.spec.params import Field, PresetParams, Space
from fcilbench.vectors.calibrate import Refit, refit_head
from fcilbench.vectors.class_sums import scatter_rows
from fcilbench.vectors.gaussian import Gaussians, measure, merge
from fcilbench.vectors.virtual import VirtualFeatures

_PEER = "fed-mammoth"


class Ccvr(Aggregator):
    """FedAvg with the masked cross-entropy (ACE), then a head refitted on features drawn from class Gaussians.

    Clients send count, mean and scatter of each class's features `[n, F]`; the server refits the head by cross-entropy
    on draws from N(mean_c, covariance_c). Luo et al. 2021 do so once after training, for all classes with full
    covariances; here the current task's classes are refitted at its end, with variances. ACE: Caccia et al. 2022.

    The refitted head is part of the global model: it is what is deployed and what later rounds start from. Head rows of
    classes without statistics, and the backbone, stay as they are, bit for bit.
    """

    version = "1"
    traits = Traits(server_only=True)

    class Params(PresetParams):
        """Hyperparameters of CCVR."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"cov": "full", "scope": "seen"},
            "fed_mammoth": {
                "when": "round",
                "stats_on": "local",
                "density": "mixture",
                "drop_singletons": True,
                "sampling": "multinomial",
                "logit_norm": 0.1,
                "raw_inputs": True,
            },
        }

        when: Literal["task_end", "round"] = Field("task_end", description="calibrate once a task or after each round")
        stats_on: Literal["global", "local"] = Field(
            "global", description="features of the task's final global model, or of each client's own trained one"
        )
        scope: Literal["current", "seen"] = Field(
            "current", description="refit the task's classes, or all seen ones by statistics that age with the backbone"
        )
        density: Literal["pooled", "mixture"] = Field(
            "pooled", description="one Gaussian a class, or a mixture of the clients' own"
        )
        cov: Literal["diag", "full"] = Field("diag", description="variances, or whole covariance matrices")
        drop_singletons: bool = Field(
            False, description="ignore a client's class of one sample, a defect of fed-mammoth"
        )
        sampling: Literal["exact", "multinomial"] = Field(
            "exact", description="exactly `samples` features a class, or on average"
        )
        samples: int = Field(
            256, ge=0, description="virtual features a class and epoch; 0 calibrates nothing", source=_PEER
        )
        epochs: int = Field(5, ge=1, description="epochs of the refit, each on new features", source=_PEER)
        batch_size: int = Field(256, ge=1, description="features per step", source=_PEER)
        lr_head: float = Field(
            0.01,
            gt=0,
            description="learning rate of the refit, cosine over its epochs",
            source=_PEER,
            space=Space(low=1e-3, high=0.1, log=True),
        )
        momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the refit's SGD", source=_PEER)
        logit_norm: float | None = Field(
            None, gt=0, description="divide logits by this times their L2 norm; fed-mammoth: 0.1"
        )
        shrink: float = Field(1e-8, gt=0, description="variance added to every direction")
        rho_few: float = Field(
            0.1, ge=0, le=1, description="full covariance: shrinkage of classes with at most F samples"
        )
        rho_many: float = Field(0.01, ge=0, le=1, description="full covariance: shrinkage of the others")
        raw_inputs: bool = Field(False, description="features of inputs without normalisation, a defect of fed-mammoth")

        @model_validator(mode="after")
        def _one_broadcast(self) -> Self:
            if self.when == "round" and self.stats_on == "global":
                raise ValueError("when=round with stats_on=global needs a second broadcast a round; use stats_on=local")
            return self

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends class statistics of its own model, if those are wanted."""
        return self._measure(client) if self.params.stats_on == "local" else {}

    def wants_task_statistics(self, server: Server) -> bool:
        """Asks for statistics at the final global model of a task, unless the clients' own are used."""
        return bool(self.params.stats_on == "global")

    def task_statistics(self, client: Client) -> Message:
        """Sends class statistics of the global model."""
        return self._measure(client)

    def _measure(self, client: Client) -> Message:
        """Returns all counts of the task `[c]`, and mean and M2 (variances or triangles) of the classes present."""
        task, full = client.task, self.params.cov == "full"
        batches = client.batches(raw=self.params.raw_inputs)
        labelled = ((client.net.features(batch.inputs), task.local(batch.labels)) for batch in batches)
        found = measure(labelled, task.size, client.feature_dim, full)
        own = found[found.count > 0]
        scatter = torch.stack([pack_symmetric(matrix) for matrix in own.scatter]) if full else own.scatter
        return {"count": found.count.to(torch.int32), "mean": own.mean.float(), "scatter": scatter.float()}

    # ---------------------------------------------------------------- server

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages the models; calibrates if that is done each round."""
        server.step(updates.mean())
        if self.params.stats_on == "local":
            server.state["latest"] = [dict(message) for message in updates.statistics]
            if self.params.when == "round":
                self._calibrate(server, server.state.pop("latest"))

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Calibrates if that is done at the end of a task."""
        if self.params.when == "task_end":
            latest = server.state.pop("latest", [])
            sent = [statistics[client] for client in sorted(statistics)]
            self._calibrate(server, latest if self.params.stats_on == "local" else sent)

    def _calibrate(self, server: Server, messages: Sequence[Message]) -> None:
        groups = self._groups(server, [dict(message) for message in messages])
        features = VirtualFeatures.of(groups, self.params.shrink, self.params.rho_few, self.params.rho_many)
        if features is None or self.params.samples == 0:
            return
        params, parts = self.params, server.layout
        head = server.vector[parts.head]
        cut = parts.classes * parts.features
        weight, bias = head[:cut].view(parts.classes, parts.features), head[cut:]
        rows = features.classes
        how = Refit(params.epochs, params.batch_size, params.lr_head, params.momentum, params.logit_norm)
        exact = params.sampling == "exact"
        new_weight, new_bias, loss = refit_head(
            weight[rows], bias[rows], lambda random: features.draw(params.samples, exact, random), how,
            server.random("ccvr"),
        )  # fmt: skip
        direction = torch.zeros_like(head)
        direction[:cut].view_as(weight)[rows] = new_weight - weight[rows]
        direction[cut:][rows] = new_bias - bias[rows]
        server.step(direction, parts.head)
        server.log("ccvr/loss", loss)
        server.log("ccvr/classes", len(rows))

    def _groups(self, server: Server, messages: list[dict[str, torch.Tensor]]) -> list[tuple[int, Gaussians]]:
        """Returns the statistics in the scope as (offset of the first class, classes), and keeps them if needed."""
        kept: dict[int, list[dict[str, torch.Tensor]]] = {}
        if self.params.scope == "seen":
            kept = server.state.setdefault("statistics", {})
        if messages:
            kept[server.task.offset] = messages
        groups = []
        for offset in sorted(kept):
            parts = [self._unpack(message) for message in kept[offset]]
            if self.params.density == "pooled":
                parts = [merge(parts)]
            groups += [(offset, part) for part in parts]
        return groups

    def _unpack(self, message: Message) -> Gaussians:
        count, scatter = message["count"].to(torch.float64), message["scatter"]
        if self.params.cov == "full":
            size = message["mean"].shape[1]
            scatter = torch.stack([unpack_symmetric(triangle, size) for triangle in scatter])
        found = Gaussians(count, scatter_rows(message["mean"], count), scatter_rows(scatter, count))
        return found.without_singletons() if self.params.drop_singletons else found
