"""DARE: Yu et al. 2024, "Language Models are Super Mario: Absorbing Abilities from Homologous Models as a Free Lunch".

Drop And REscale: random sparsification of what a merge is of, and no merge by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import model_validator

from fcilbench.api import Client, Field, Layout, Message, Piece, Predictors, Server, Space, Updates
from fcilbench.plugins.aggregators.task_vectors import TaskVectorMethod, TaskVectorParams, one_model
from fcilbench.vectors.module import Basis
from fcilbench.vectors.ties import merge_plain, merge_signs

_SEED = "dare/seed"


class DareParams(TaskVectorParams):
    """Hyperparameters of DARE."""

    over: Literal["clients", "tasks"] = Field(
        "clients", description="what is dropped and merged: the clients' updates in each round, or the tasks' vectors"
    )
    drop_rate: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="probability p that an entry is dropped; null: 0.5 over clients, 0.9 over tasks",
        source="over tasks the README of Yu et al. 2024; over clients ours, since each round adds its own noise",
        space=Space(low=0.0, high=0.95),
    )
    rescale: bool = Field(True, description="divide what is kept by 1 - p, so that its mean is the whole vector")
    where: Literal["server", "client"] = Field(
        "server", description="over clients: who drops; dropped by a client, entries are not sent"
    )
    merge: Literal["average", "ties", "sum"] = Field(
        "average", description="FedAvg's mean, TIES-Merging, or the sum times lambda (task arithmetic)"
    )
    keep: float = Field(0.2, gt=0, le=1, description="fraction of largest entries that TIES keeps", source="as `ties`")
    lam: float | None = Field(
        None,
        gt=0,
        description="scale lambda of what `ties` and `sum` give; null: 0.4, and 1 for `ties` over tasks",
        source="as `ties`",
    )

    @property
    def rate(self) -> float:
        """Returns p, the probability with which an entry is dropped; its default depends on `over`."""
        return self.drop_rate if self.drop_rate is not None else 0.5 if self.over == "clients" else 0.9

    @property
    def scale(self) -> float:
        """Returns lambda, the factor of the merged vector; its default depends on `over`."""
        return self.lam if self.lam is not None else 1.0 if self.merge == "ties" and self.over == "tasks" else 0.4

    @model_validator(mode="after")
    def _no_idle_option(self) -> Self:
        """Refuses an option that another one leaves without effect."""
        for option, works, need in (
            ("task_start", self.over == "tasks", "over: tasks"),
            ("storage", self.over == "tasks", "over: tasks"),
            ("where", self.over == "clients", "over: clients"),
            ("rescale", self.rate > 0, "drop_rate > 0"),
            ("keep", self.merge == "ties", "merge: ties"),
            ("lam", self.merge != "average", "merge: ties or sum"),
        ):
            if not works and getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option} has no effect here: it needs {need}")
        return self


class Dare(TaskVectorMethod):
    """DARE: drop entries of each vector at random, rescale the rest, and merge.

    tau' = m * tau / (1 - p) with m ~ Bernoulli(1 - p) for each entry of the backbone `[P]` and each vector by itself,
    so that E tau' = tau and Var tau'_j = tau_j^2 p / (1 - p) (Yu et al. 2024). Then the mean by sample counts, TIES, or
    a scaled sum. Over clients, tau_k = theta_k - theta in each round; over tasks tau_t = theta^(t) - theta_pre, drawn
    once at the task's end, and theta_pre plus their merge is deployed. The head is FedAvg's, as the source leaves
    classifiers out. The source merges finished models once; noise in every round is this setting's.

    A client that drops (`where: client`) sends the values that it keeps and the seed of its mask, 8 bytes.
    """

    version = "1"
    card: ClassVar = {
        "family": "merging",
        "trained": "the whole model",
        "travels": "the model; with where: client a random part of the update",
        "memory": "nothing",
        "source": "Yu et al. 2024, ICML",
    }
    breaks: ClassVar = {
        "one-client": "entries of the client's update are dropped at random, and the others scaled up",
        "identical-clients": "equal updates are dropped by masks of their own",
    }

    class Params(DareParams):
        """Hyperparameters of DARE."""

    params: DareParams

    def _merges_tasks(self) -> bool:
        return self.params.over == "tasks"

    @property
    def _factor(self) -> float:
        return 1.0 / (1.0 - self.params.rate) if self.params.rescale else 1.0

    def _dropped(self, vector: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
        """Returns tau' of a vector `[P]`."""
        if self.params.rate == 0:
            return vector
        return torch.where(mask_of(vector.numel(), self.params.rate, random, vector.device), vector * self._factor, 0.0)

    # ---------------------------------------------------------------- over clients

    def encode(self, update: Message, client: Client) -> Message:
        """Sends of the backbone the kept values, and the seed of the mask; `where: client`."""
        if self.params.where == "server" or self.params.rate == 0:
            return update
        seed = int(client.random("dare").integers(2**63))
        sent = dict(update)
        for piece, mask in self._masks(seed, update, client.net.layout):
            values = update[piece.name].flatten()
            sent[piece.name] = values[mask.to(values.device)] * self._factor
        return {**sent, _SEED: torch.tensor([seed], device=client.received_model.device)}

    def decode(self, message: Message, server: Server) -> Message:
        """Returns the update with zeros where entries were dropped."""
        if _SEED not in message:
            return message
        found = {name: value for name, value in message.items() if name != _SEED}
        for piece, mask in self._masks(int(message[_SEED]), found, server.layout):
            values = found[piece.name]
            dense = values.new_zeros(mask.numel())
            dense[mask.to(values.device)] = values
            found[piece.name] = dense.view(piece.shape)
        return found

    def _masks(self, seed: int, sent: Message, layout: Layout) -> list[tuple[Piece, torch.Tensor]]:
        """Returns the backbone's pieces that travel with their masks, drawn in the order of the state vector."""
        random, device = np.random.default_rng(seed), torch.device("cpu")
        pieces = [p for p in layout.pieces if p.name in sent and p.span.stop <= layout.backbone.stop]
        return [(p, mask_of(p.span.stop - p.span.start, self.params.rate, random, device)) for p in pieces]

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Drops and merges the backbone's updates, over clients; averages head and buffers."""
        step = updates.mean()
        if not self._merges_tasks():
            backbone = updates.layout.backbone
            mean = torch.linalg.vector_norm(step[backbone], dtype=torch.float64)
            step[backbone] = self._merge_clients(updates, server)
            size = torch.linalg.vector_norm(step[backbone], dtype=torch.float64)
            server.log("dare/step_ratio", float(size / mean.clamp(min=1e-300)))  # to the mean of what arrived
        server.step(step)

    def _rows(self, updates: Updates, server: Server) -> Iterator[torch.Tensor]:
        """Yields each client's update of the backbone, dropped if that is the server's part."""
        for client, row in zip(updates.clients, updates.backbone, strict=True):
            here = self.params.where == "server"
            yield self._dropped(row, server.random(f"dare/{client}")) if here else row

    def _merge_clients(self, updates: Updates, server: Server) -> torch.Tensor:
        """Returns the step of the backbone; but for `ties`, one client's row is in memory at a time."""
        if self.params.merge == "ties":
            return self._merge(list(self._rows(updates, server)), updates.samples, server)
        average, count = self.params.merge == "average", len(updates.samples)
        weights = updates.samples if average else (1,) * count
        merged = torch.zeros_like(updates.backbone[0])
        for weight, row in zip(weights, self._rows(updates, server), strict=True):
            merged.add_(row, alpha=weight / sum(weights))
        return merged if average else self.params.scale * count * merged

    # ---------------------------------------------------------------- over tasks

    def _kept(self, vector: torch.Tensor, server: Server) -> torch.Tensor:
        return self._dropped(vector, server.random("dare/task"))

    def predictors(self, server: Server) -> Predictors:
        """Deploys the global model, or over tasks theta_pre and the merge of the tasks' vectors."""
        return one_model(lambda: self._deployed(server)) if self._merges_tasks() else super().predictors(server)

    def _deployed(self, server: Server) -> torch.Tensor:
        vectors, nothing = self._learned(server), torch.zeros_like(server.vector[server.layout.backbone])
        return self._model(server, self._merge(vectors, (1,) * len(vectors), server) if vectors else nothing)

    def export(self, server: Server) -> Message:
        """Returns the deployed vector."""
        return {"theta": self._deployed(server)} if self._merges_tasks() else super().export(server)

    # ---------------------------------------------------------------- merging

    def _merge(self, vectors: Basis, weights: Sequence[float], server: Server) -> torch.Tensor:
        size, device = server.layout.backbone.stop, server.vector.device
        if self.params.merge == "ties":
            return self.params.scale * merge_signs(vectors, weights, self.params.keep, size=size, device=device)
        if self.params.merge == "average":
            return merge_plain(vectors, weights, 1.0, size=size, device=device)
        count = len(vectors)
        return self.params.scale * count * merge_plain(vectors, (1,) * count, 1.0, size=size, device=device)


def mask_of(size: int, rate: float, random: np.random.Generator, device: torch.device) -> torch.Tensor:
    """Returns which of `size` entries are kept, each with probability 1 - `rate`, bool `[size]`."""
    return torch.from_numpy(random.random(size, dtype=np.float32) >= rate).to(device)
