"""FedProto: Tan et al. 2022, "FedProto: Federated Prototype Learning across Heterogeneous Clients", made continual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F

from fcilbench.api import (
    ONE_SCALE,
    Aggregator,
    Batch,
    Client,
    Context,
    Field,
    Message,
    Net,
    Predictors,
    PresetParams,
    Server,
    Space,
    Updates,
    masked_cross_entropy,
)
from fcilbench.vectors.class_means import class_sums, nearest_mean_head, scatter_rows


class FedProto(Aggregator):
    """Federated Prototype Learning: FedAvg whose clients pull features to the last round's global class prototypes.

    L = masked CE + lambda sum_c MSE(mean of the batch's features of c, G_c), over the classes whose prototype is known:
    none in the first round of a task. G_c = sum_i n_ic p_ic / sum_i n_ic over clients' mean features p_ic `[F]` of n_ic
    samples. Tan et al. 2022 exchange prototypes only. Here the models are averaged too: one global model is evaluated.
    """

    version = "1"
    card: ClassVar = {
        "family": "prototypes",
        "trained": "the whole model",
        "travels": "the model; the mean feature of each class",
        "memory": "nothing",
        "source": "Tan et al. 2022, AAAI",
    }

    class Params(PresetParams):
        """Hyperparameters of FedProto."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {
                "lambda_proto": 1.0,
                "proto_term": "per_sample",
                "proto_weighting": "uniform",
                "predict": "prototype",
            }
        }

        lambda_proto: float = Field(
            0.1,
            ge=0,
            description="weight of the prototype term",
            source="fed-mammoth; the method's paper: 1",
            space=Space(low=0.01, high=10.0, log=True),
        )
        proto_term: Literal["batch_mean", "per_sample"] = Field(
            "batch_mean", description="distance of the batch's class means, or of every sample, to the prototype"
        )
        proto_weighting: Literal["samples", "uniform"] = Field(
            "samples", description="global prototypes weigh clients by samples of the class, or equally"
        )
        predict: Literal["classifier", "prototype"] = Field(
            "classifier", description="answer by the head's logits, or by the nearest prototype"
        )

    # ---------------------------------------------------------------- clients

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Adds the prototype term in float32 where prototypes were broadcast."""
        features = net.features(batch.inputs)
        loss = masked_cross_entropy(net.head(features), batch)
        if "prototypes" not in context:
            return loss
        term = batch_mean_term if self.params.proto_term == "batch_mean" else per_sample_term
        strength: float = self.params.lambda_proto
        return loss + strength * term(features, batch, context["prototypes"], context["known"])

    def statistics(self, client: Client) -> Message:
        """Sends the mean feature of each class that the client has, `[l, F]`, and all counts of the task `[c]`."""
        task = client.task
        labelled = ((client.net.features(batch.inputs), task.local(batch.labels)) for batch in client.batches())
        sums, counts = class_sums(labelled, task.size, client.feature_dim)
        present = counts > 0
        means = (sums[present] / counts[present, None]).float()
        return {"prototypes": means, "counts": counts.to(torch.int32)}

    # ---------------------------------------------------------------- server

    def begin(self, server: Server) -> None:
        """Creates the prototypes, none of them known yet."""
        classes, features = server.layout.classes, server.layout.features
        server.state["prototypes"] = torch.zeros(classes, features, device=server.vector.device)
        server.state["known"] = torch.zeros(classes, dtype=torch.bool, device=server.vector.device)

    def broadcast(self, server: Server) -> Message:
        """Sends the task's prototypes `[c, F]` and which of them exist, once there are any."""
        known = server.state["known"][server.task.classes]
        if not bool(known.any()):
            return {}
        return {"prototypes": server.state["prototypes"][server.task.classes], "known": known}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages the models, and each class's prototypes over the clients that have it."""
        server.step(updates.mean())
        size, features = server.task.size, server.layout.features
        total = torch.zeros(size, features, dtype=torch.float64, device=server.vector.device)
        weight = torch.zeros(size, dtype=torch.float64, device=server.vector.device)
        for message in updates.statistics:
            counts = message["counts"].to(torch.float64)
            share = counts if self.params.proto_weighting == "samples" else (counts > 0).to(torch.float64)
            total += share[:, None] * scatter_rows(message["prototypes"], counts)
            weight += share
        reported = weight > 0
        own = server.task.classes
        server.state["prototypes"][own][reported] = (total[reported] / weight[reported, None]).float()
        server.state["known"][own] |= reported

    def predictors(self, server: Server) -> Predictors:
        """Answers with the head, or with the nearest prototype, where all classes compete under `inferred` as well."""
        if self.params.predict == "classifier":
            return super().predictors(server)
        return Predictors({"global": lambda: self._nearest(server)}, ONE_SCALE)

    @staticmethod
    def _nearest(server: Server) -> torch.Tensor:
        """Returns the global vector with a head whose logits rank classes by the distance of their prototype."""
        deployed = server.vector.clone()
        known = server.state["known"].to(torch.float64)
        deployed[server.layout.head] = nearest_mean_head(server.state["prototypes"].double() * known[:, None], known)
        return deployed


def batch_mean_term(
    features: torch.Tensor, batch: Batch, prototypes: torch.Tensor, known: torch.Tensor
) -> torch.Tensor:
    """Returns `sum_c mean_d (mean_j f_jd - G_cd)^2` over the classes in the batch that have a prototype.

    Features are `[B, F]`, the prototypes G of the task's classes `[c, F]`; `known` `[c]` says which of them exist.
    """
    member = F.one_hot(batch.task.local(batch.labels), batch.task.size).float() * batch.mask[:, None]
    count = member.sum(dim=0)
    mean = (member.T @ features.float()) / count.clamp(min=1.0)[:, None]
    distance = (mean - prototypes.detach()).square().mean(dim=1)
    return (distance * known * (count > 0)).sum()


def per_sample_term(
    features: torch.Tensor, batch: Batch, prototypes: torch.Tensor, known: torch.Tensor
) -> torch.Tensor:
    """Returns the mean over samples of `mean_d (f_jd - G_yd)^2`; samples without a prototype count as 0."""
    local = batch.task.local(batch.labels)
    distance = (features.float() - prototypes.detach()[local]).square().mean(dim=1)
    return batch.mean(distance * known[local])
