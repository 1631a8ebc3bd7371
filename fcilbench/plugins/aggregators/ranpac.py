"""RanPAC: McDonnell et al. 2023, "RanPAC: Random Projections and Pre-trained Models for Continual Learning"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import field_validator
from torch import nn

from fcilbench.api import (
    Aggregator,
    Batch,
    Client,
    Context,
    FeatureExtractor,
    Field,
    Message,
    Net,
    No,
    Predictors,
    PresetParams,
    Request,
    Schedule,
    Server,
    Space,
    Updates,
    UsageError,
    Wire,
    insert_lora,
    unpack_symmetric,
)
from fcilbench.plugins.aggregators.lora import declined_adapter
from fcilbench.plugins.aggregators.ncm import head_vector
from fcilbench.plugins.aggregators.ridge import RandomProjection, Ridge, second_moments
from fcilbench.vectors.class_means import scatter_rows
from fcilbench.vectors.ridge import holdout_errors

_RANK = 4
_HELD, _FITTED = "held_", 0.8
"""Prefix of what a client tells of its held-out samples, and the share of the others."""
_LEVELS = tuple(10.0**power for power in range(-8, 9))
"""Values of lambda among which held-out samples choose, for features of a projection with entries N(0, 1)."""


class RanPac(Ridge):
    """RanPAC: adapts the backbone in the first task, freezes it, and fits a ridge regression on random features.

    First session: in the first task a LoRA of rank 4 in every linear layer, and a cosine head over the task's classes,
    are trained by FedAvg; the head is then given up. From the final global adapter on, clients send
    G = sum h h^T and the class sums Q of h = relu(R f) once a task, with R `[M, F]` Gaussian and fixed, and the server
    solves W = Q (G + lambda I)^-1 with the sums over all clients and tasks. lambda is chosen by generalised
    cross-validation, or as in the original on held-out samples of the task: each client holds out a fifth, and sends
    the sums of both parts.

    The sums are exact, whatever the partition and the order of the later tasks. Only the first session trains, so
    without it (`first_session: none`) this is `ridge` on random features.
    """

    version = "2"  # with few samples another strength
    card: ClassVar = {
        "family": "controls",
        "trained": "a low-rank adapter, in the first task",
        "travels": "the adapter in the first task; a Gram matrix, and sums of each class, once a task",
        "memory": "nothing",
        "source": "McDonnell et al. 2023, NeurIPS",
    }
    trains = True
    role = "control"
    lr_range = (1e-4, 0.1)
    kit_params: ClassVar[Mapping[str, Any]] = {"random_features": 40}

    class Params(PresetParams):
        """Hyperparameters of RanPAC."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"random_features": 10000, "ridge": "holdout"}
        }

        first_session: Literal["lora", "none"] = Field(
            "lora", description="what the first task trains; none: the backbone stays as it is, and nothing is trained"
        )
        random_features: int = Field(
            2000,
            ge=0,
            description="size M of the random projection relu(R f); 0: the features as they are",
            source="a fifth of McDonnell et al. 2023: a Gram matrix of 16 MB a task instead of 400",
            space=Space(low=1000, high=10000, log=True),
        )
        ridge: Literal["gcv", "holdout"] | float = Field(
            "gcv",
            description="lambda in units of the Gram's mean diagonal, or chosen: by generalised cross-validation on "
            "the server, or on held-out samples of each task",
            source="Golub, Heath, Wahba 1979",
        )

        @field_validator("ridge")
        @classmethod
        def _regularises(cls, ridge: Literal["gcv", "holdout"] | float) -> Literal["gcv", "holdout"] | float:
            if not isinstance(ridge, str) and ridge <= 0:
                raise ValueError("must be positive, gcv or holdout")
            return ridge

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Freezes the backbone, puts the random projection behind it, and the adapters of the first session into it."""
        extractor = network.get_submodule("extractor")
        assert isinstance(extractor, FeatureExtractor)
        if self.params.first_session == "lora" and (declined := declined_adapter("RanPAC", extractor)):
            return declined
        super().prepare(network, request)
        if self.params.first_session == "lora":
            try:
                insert_lora(extractor, _RANK, _RANK)
            except UsageError:
                return No(
                    "RanPAC's first session adapts linear layers, and this backbone has none (first_session: none)"
                )
            network.extractor = _FirstSession(extractor, network.get_submodule("extractor"), request.tasks[0])
        return None

    def build_schedule(self, schedule: Schedule) -> Schedule:
        """Lets the first task train as the protocol says; every other one is a report of every client."""
        phases = [
            phase if self._trains(phase.task.index) else replace(phase, rounds=1, epochs=0, participation=1.0)
            for phase in schedule.phases
        ]
        return replace(schedule, phases=tuple(phases))

    def _trains(self, task: int) -> bool:
        return task == 0 and self.params.first_session == "lora"

    # ---------------------------------------------------------------- clients

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the cross-entropy of the first session's cosine head."""
        logits = net.outputs(batch.inputs)["session"]
        return batch.mean(F.cross_entropy(logits.float(), batch.task.local(batch.labels), reduction="none"))

    def statistics(self, client: Client) -> Message:
        """Sends the task's sums, unless it trains."""
        return {} if self._trains(client.task.index) else self._sums(client)

    def task_statistics(self, client: Client) -> Message:
        """Sends the first task's sums, under the final global adapter."""
        return self._sums(client)

    def _sums(self, client: Client) -> Message:
        if self.params.ridge != "holdout":
            return second_moments(client)
        order = client.random("holdout").permutation(client.samples)
        cut = max(1, math.floor(_FITTED * client.samples))
        held = second_moments(client, client.own.take(order[cut:]))
        return {
            **second_moments(client, client.own.take(order[:cut])),
            **{_HELD + name: tensor for name, tensor in held.items()},
        }

    # ---------------------------------------------------------------- server

    def wire(self, server: Server) -> Wire:
        """Lets the first session train and send adapters and cosine head; nothing else trains."""
        trained = ("*.lora_*", "extractor.session.*") if self._trains(server.task.index) else ()
        return Wire(train=trained, up=trained)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages the first session's models; in other tasks learns the task from its sums."""
        if self._trains(server.task.index):
            Aggregator.aggregate(self, updates, server)
        else:
            self._learn(updates.statistics, server)

    def wants_task_statistics(self, server: Server) -> bool:
        """Needs the sums of the task that has trained."""
        return self._trains(server.task.index)

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Learns the task that has trained."""
        if statistics:
            self._learn(list(statistics.values()), server)

    def _learn(self, messages: Sequence[Message], server: Server) -> None:
        """Adds a task's sums and solves with those of all tasks; the head is kept apart, as clients do not need it."""
        held = [{n.removeprefix(_HELD): t for n, t in m.items() if n.startswith(_HELD)} for m in messages]
        self._add(messages, server)
        chosen = self.params.ridge
        if chosen == "holdout":
            self._add(held, server)
            mean = float(unpack_symmetric(server.state["gram"], server.layout.features).diagonal().mean())
            level = self._best_level(messages, held, server)
            chosen = "gcv" if level is None or mean <= 0 else level / mean  # nobody had a sample to hold out
        weight, known = self._solved(server, chosen), server.state["counts"] > 0
        server.state["head"] = head_vector(weight, known)

    def _best_level(self, fitted: Sequence[Message], held: Sequence[Message], server: Server) -> float | None:
        """Returns the lambda of least squared error on the task's held-out samples; `None` without any."""
        samples = sum(float(message["counts"].sum()) for message in held)
        if samples == 0:
            return None
        size = server.layout.features
        parts = []
        for messages in (fitted, held):
            grams = torch.stack([message["gram"] for message in messages]).sum(dim=0)
            sums = torch.stack([scatter_rows(message["sums"], message["counts"]) for message in messages]).sum(dim=0)
            parts.append((unpack_symmetric(grams, size), sums))
        # Entries of R have the variance 1 / F here, and 1 in the original.
        lifts = [module for module in server.network.modules() if isinstance(module, RandomProjection)]
        levels = [level / lifts[0].projection.shape[0] if lifts else level for level in _LEVELS]
        errors = holdout_errors(parts[0], parts[1], samples, levels)
        return levels[errors.index(min(errors))]

    def _deployed(self, server: Server) -> torch.Tensor:
        vector = server.vector.clone()
        if "head" in server.state:
            vector[server.layout.head] = server.state["head"]
        return vector

    def predictors(self, server: Server) -> Predictors:
        """Answers with the adapted backbone and the one head."""
        return replace(super().predictors(server), modules={"global": lambda: self._deployed(server)})

    def export(self, server: Server) -> Message:
        """Returns the model with its head."""
        return {"theta": self._deployed(server)}


class _FirstSession(FeatureExtractor):
    """Random features, and beside them the logits of the cosine head that the first task trains."""

    def __init__(self, extractor: FeatureExtractor, projected: nn.Module, classes: int) -> None:
        assert isinstance(projected, FeatureExtractor)
        super().__init__(extractor, projected.feature_dim, extractor.channels_last)
        self.lift = nn.Identity() if projected is extractor else projected.get_submodule("body.1")
        self.session = _CosineHead(extractor.feature_dim, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.lift(self.body(inputs))
        return features

    def outputs(self, inputs: torch.Tensor, context: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        features = self.body(inputs)
        return {"features": self.lift(features), "session": self.session(features)}


class _CosineHead(nn.Module):
    """Logits s cos(f, w_c) with a learnt scale s, which begins at 1."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features).uniform_(-1, 1) / math.sqrt(features))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return self.scale * F.linear(F.normalize(features.float(), dim=1), F.normalize(self.weight, dim=1))
