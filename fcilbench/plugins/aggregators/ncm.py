"""Nearest class mean on frozen features: a control that trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from fcilbench.api import (
    ONE_SCALE,
    Aggregator,
    Client,
    Field,
    Message,
    No,
    Predictors,
    Request,
    Schedule,
    Server,
    Updates,
    freeze_batch_norm,
)
from fcilbench.api import Params as BaseParams
from fcilbench.vectors.class_means import MISSING, class_sums, scatter_rows


class FrozenFeatures(Aggregator):
    """Base of methods that fit a linear head on the pretrained features, from sums that clients send once.

    Every client with data reports in one round a task. Sums do not depend on how samples are spread over clients and
    tasks, and earlier tasks' sums are kept, so there is no forgetting beyond more classes competing. `inferred` is
    answered like `none`: one head ranks all classes on one scale, and the class tells the task; its slices carry no
    probabilities that could be compared.
    """

    trains = False

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Freezes the backbone, which every client has from the start: the head alone is sent and deployed."""
        extractor = network.get_submodule("extractor")
        extractor.requires_grad_(False)
        freeze_batch_norm(extractor)
        return None

    def build_schedule(self, schedule: Schedule) -> Schedule:
        """Makes one round of each task, with every client: a second one would send the same sums again."""
        phases = (replace(phase, rounds=1, participation=1.0) for phase in schedule.phases)
        return replace(schedule, phases=tuple(phases))

    def begin(self, server: Server) -> None:
        """Creates empty class sums `[C, F]` and counts `[C]`."""
        classes, features = server.layout.classes, server.layout.features
        server.state["sums"] = torch.zeros(classes, features, dtype=torch.float64, device=server.vector.device)
        server.state["counts"] = torch.zeros(classes, dtype=torch.float64, device=server.vector.device)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the clients' class sums and counts."""
        self._add(updates.statistics, server)

    def _add(self, messages: Sequence[Message], server: Server) -> None:
        own, state = server.task.classes, server.state
        for message in messages:
            counts = message["counts"].to(torch.float64)
            state["counts"][own] += counts
            state["sums"][own] += scatter_rows(message["sums"], counts)

    def predictors(self, server: Server) -> Predictors:
        """Answers with the one head."""
        return Predictors({"global": lambda: server.vector}, ONE_SCALE)


def head_vector(weight: torch.Tensor, known: torch.Tensor, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
    """Returns a head as in the global vector, float32 `[C F + C]`: weight `[C, F]`, then bias `[C]`.

    Classes that are not known (bool `[C]`) get zeros and the bias `MISSING`.
    """
    biases = torch.where(known, bias, MISSING).to(weight)
    return torch.cat([torch.where(known[:, None], weight, 0.0).flatten(), biases]).to(torch.float32)


def write_head(server: Server, weight: torch.Tensor, known: torch.Tensor, bias: torch.Tensor | float = 0.0) -> None:
    """Puts a head (see `head_vector`) into the global vector."""
    head, part = head_vector(weight, known, bias), server.layout.head
    # Whatever is added to `MISSING` is lost in its rounding: it is taken away first.
    before = server.vector[part]
    server.step(torch.where(before == torch.tensor(MISSING).to(before), -before, 0.0), part)
    server.step(head - server.vector[part], part)


class Ncm(FrozenFeatures):
    """Nearest Class Mean by cosine on frozen features; clients upload class sums and counts.

    The head's row of a class is its mean divided by its norm; the largest logit is the largest cosine whatever the norm
    of a sample's features.
    """

    version = "2"  # the backbone is no part of the model that is sent and deployed
    card: ClassVar = {
        "family": "controls",
        "trained": "nothing",
        "travels": "sums of features of each class once a task",
        "memory": "nothing",
        "source": "Mensink et al. 2013, TPAMI",
    }
    role = "control"

    class Params(BaseParams):
        """Hyperparameters of the nearest class mean."""

        unit_features: bool = Field(
            False, description="scale every sample's features to norm 1 before they enter its class mean"
        )

    def statistics(self, client: Client) -> Message:
        """Sends the sums of the classes that it has, float64 `[l, F]`, and all counts of the task `[c]`."""
        task = client.task
        labelled = ((self._features(client, batch.inputs), task.local(batch.labels)) for batch in client.batches())
        sums, counts = class_sums(labelled, task.size, client.feature_dim)
        return {"sums": sums[counts > 0], "counts": counts.to(torch.int32)}

    def _features(self, client: Client, inputs: torch.Tensor) -> torch.Tensor:
        features = client.net.features(inputs)
        return torch.nn.functional.normalize(features, dim=1) if self.params.unit_features else features

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the clients' sums and writes the head."""
        super().aggregate(updates, server)
        write_head(server, torch.nn.functional.normalize(server.state["sums"], dim=1), server.state["counts"] > 0)
