"""PILoRA: Guo et al. 2024, "PILoRA: Prototype Guided Incremental LoRA for Federated Class-Incremental Learning"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    ONE_SCALE,
    Aggregator,
    Batch,
    Client,
    Context,
    Field,
    Message,
    Net,
    No,
    Predictors,
    PresetParams,
    Request,
    Server,
    Space,
    Updates,
    Wire,
    insert_lora,
)
from fcilbench.plugins.aggregators.lora import declined_adapter
from fcilbench.vectors.class_means import class_sums, nearest_mean_head, scatter_rows

_PROTOTYPES = "extractor.prototypes."
_FUSED = "qkv"
_QUERY_VALUE = {"q": "v", "query": "value", "q_proj": "v_proj", "q_lin": "v_lin"}
"""Names of the projections of an attention layer: T5; BERT; most other transformers; DistilBERT."""
_TIE = 1e-9
"""Relative spread of the clients' closeness below which it is rounding, and all count alike."""


class PILoRA(Aggregator):
    """Prototype Guided Incremental LoRA: a small LoRA for each task and learnt class prototypes on a frozen backbone.

    Query and value of the first attention layer get a product B_s A_s of rank r for each task s; all of them add up.
    In task t only B_t, A_t and the prototypes m_c `[F]` of its classes train. With d_c(x) = ||f(x) - m_c|| / sqrt(F) of
    the features f `[F]`, clients minimise (Guo et al. 2024, the last term from their code)

        CE(-d / tau, y) + lambda d_y + gamma sum_{s < t} ||A_t A_s^T||_1 + mu ||A_t||_1,

    norms entrywise and summed over query and value. The server averages A_t and B_t, and weighs the clients' prototypes
    of a class by how close they are to the class means of all clients (`closeness`). The nearest prototype answers.
    The softmax runs over all prototypes, those of later tasks included: the number of classes must be known.
    """

    version = "2"  # the pass for the class means has the protocol's precision
    card: ClassVar = {
        "family": "adapters",
        "trained": "a low-rank adapter of one attention layer for each task, and class prototypes",
        "travels": "what is trained; the mean feature of each class",
        "memory": "nothing",
        "source": "Guo et al. 2024, ECCV",
    }
    lr_range = (1e-3, 1.0)

    class Params(PresetParams):
        """Hyperparameters of PILoRA."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"min_visits": 0},
            "text": {"mu_l1": 0.001, "lora_rate": 1.0},
        }

        preset: Literal["default", "original", "text"] = Field(  # type: ignore[assignment]  # one more than elsewhere
            "default",
            description="set of values that single options override: ours, those of the authors' code for images, or "
            "those of fed-mammoth for texts",
        )
        rank: int = Field(4, ge=1, description="rank r of each task's LoRA", source="Guo et al. 2024")
        lora_rate: float = Field(
            0.005,
            ge=0,
            description="learning rate of LoRA as a multiple of the protocol's, which is that of the prototypes",
            source="code of Guo et al. 2024: 1e-5 and 2e-3",
            space=Space(low=1e-4, high=1.0, log=True),
        )
        tau: float = Field(1.0, gt=0, description="temperature of the softmax over distances", source="Guo et al. 2024")
        lambda_pl: float = Field(
            0.001, ge=0, description="weight of the distance to the own prototype", source="Guo et al. 2024"
        )
        gamma_ort: float = Field(
            0.5,
            ge=0,
            description="weight of the orthogonality of A to earlier tasks",
            source="code of Guo et al. 2024",
            space=Space(low=0.01, high=10.0, log=True),
        )
        mu_l1: float = Field(0.01, ge=0, description="weight of the entries of A", source="code of Guo et al. 2024")
        softmax_over: Literal["all", "seen", "current"] = Field(
            "all", description="classes whose prototypes compete in training: all C, those seen so far, or the task's"
        )
        temperature: float = Field(
            0.2,
            gt=0,
            description="temperature of the clients' weights in merging prototypes",
            source="code of Guo et al. 2024",
        )
        init_scale: float = Field(
            0.1,
            gt=0,
            description="standard deviation of the prototypes' first entries; larger where `pilora/feature_scale` is "
            "above 1, or all distances are equal at first",
            source="Guo et al. 2024",
        )
        min_visits: int = Field(
            5,
            ge=0,
            description="a client sends the mean of a class if it trains on more samples of it in a round",
            source="fed-mammoth",
        )

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Freezes the backbone, inserts a LoRA for each task, and draws the prototypes from N(0, init_scale^2)."""
        extractor: Any = network.get_submodule("extractor")
        if declined := declined_adapter("PILoRA", extractor):
            return declined
        targets = query_and_value(extractor)
        if targets is None:
            return No("PILoRA adapts query and value of an attention layer, and this backbone has none")
        insert_lora(extractor, self.params.rank, self.params.rank, targets, tasks=len(request.tasks))
        drawn = (
            nn.Parameter(self.params.init_scale * torch.randn(size, extractor.feature_dim)) for size in request.tasks
        )
        extractor.prototypes = nn.ParameterList(drawn)
        return None

    # ---------------------------------------------------------------- clients

    def rates(self) -> Mapping[str, float]:
        """Returns the learning-rate factor of LoRA."""
        return {"*.lora_*": self.params.lora_rate}

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns classification and attraction by distances, mean over samples, plus the two penalties on A."""
        task, strength = batch.task, self.params
        pieces = net.layout.select([f"{_PROTOTYPES}*"])
        rows = [net.piece(piece.name) for piece in pieces]
        distance = distances(
            net.features(batch.inputs), torch.cat([r if t == task.index else r.detach() for t, r in enumerate(rows)])
        )
        compete = {"all": slice(None), "seen": slice(task.seen), "current": task.classes}[strength.softmax_over]
        labels = task.local(batch.labels) if strength.softmax_over == "current" else batch.labels
        losses = F.cross_entropy(-distance[:, compete] / strength.tau, labels, reduction="none")
        losses = losses + strength.lambda_pl * distance.gather(1, batch.labels[:, None])[:, 0]
        loss = batch.mean(losses)
        for piece in net.layout.select([f"*.lora_A*_{task.index}"]):
            own, stem = net.piece(piece.name), piece.name.removesuffix(str(task.index))
            loss = loss + strength.mu_l1 * own.abs().sum()
            if task.index:
                old = torch.cat([net.piece(f"{stem}{earlier}").detach() for earlier in range(task.index)])
                loss = loss + strength.gamma_ort * (own @ old.T).abs().sum()
        return loss

    def statistics(self, client: Client) -> Message:
        """Sends its count of each class of the task `[c]`, and the mean features of those it has enough of `[l, F]`."""
        task = client.task
        labelled = ((client.net.features(batch.inputs), task.local(batch.labels)) for batch in client.batches())
        with client.low_precision():
            sums, counts = class_sums(labelled, task.size, client.feature_dim)
        enough = counts * client.protocol.local_epochs > self.params.min_visits
        return {
            "means": (sums[enough] / counts[enough, None]).float(),
            "counts": torch.where(enough, counts, 0).to(torch.int32),
        }

    # ---------------------------------------------------------------- server

    def wire(self, server: Server) -> Wire:
        """Trains and sends the LoRA and the prototypes of the current task."""
        task = server.task.index
        return Wire(train=(f"*.lora_*_{task}", f"{_PROTOTYPES}{task}"), up=("*",))

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages the LoRA, and the prototypes of each class by closeness."""
        direction = updates.mean()
        piece = updates.layout.piece(f"{_PROTOTYPES}{server.task.index}")
        start = server.vector[piece.span]
        own = (start + updates.delta[:, piece.span]).view(-1, *piece.shape).double()
        means = torch.stack([scatter_rows(message["means"], message["counts"]) for message in updates.statistics])
        known = torch.stack([message["counts"] > 0 for message in updates.statistics])
        merged = (closeness(own, means, known, self.params.temperature)[:, :, None] * own).sum(dim=0)
        direction[piece.span] = merged.flatten().to(start) - start
        server.step(direction)
        if bool(known.any()):
            # ||mu|| / sqrt(F), to compare with the prototypes' `init_scale`: features of T5 are far larger.
            server.log("pilora/feature_scale", float(means[known].norm(dim=1).mean()) / math.sqrt(means.shape[2]))

    def predictors(self, server: Server) -> Predictors:
        """Answers with the nearest prototype, under `inferred` too: all prototypes lie in one space."""
        return Predictors({"global": lambda: _nearest(server)}, ONE_SCALE)

    def export(self, server: Server) -> Message:
        """Returns the vector with the head of the nearest prototype, which is what answers."""
        return {"theta": _nearest(server)}


def distances(features: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
    """Returns d = ||f - m|| / sqrt(F) `[B, C]` of features `[B, F]` and prototypes `[C, F]`; its gradient at 0 is 0."""
    apart = torch.cdist(features, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return apart / math.sqrt(features.shape[1])


def closeness(own: torch.Tensor, means: torch.Tensor, known: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns the weights `[N, c]`, sum 1 over clients, by which the clients' prototypes are merged.

    With S_i = sum_j ||m_ic - mu_jc|| of prototypes m and class means mu `[N, c, F]`, over the clients j whose mean is
    `known` `[N, c]`, the weights of a class are the softmax of q_i / temperature, where q_i is 1 / S_i scaled to 0 .. 1
    over the clients. They are equal where no mean is known, or all are equally close.
    """
    total = torch.stack([(own - mean).norm(dim=2) * some[:, None].T for mean, some in zip(means, known, strict=True)])
    near = 1.0 / (total.sum(dim=0) + 1e-10)
    least, most = near.amin(dim=0), near.amax(dim=0)
    apart = most - least > _TIE * most
    scaled = torch.where(apart, (near - least) / torch.where(apart, most - least, 1.0), 0.0)
    return (scaled / temperature).softmax(dim=0)


def query_and_value(extractor: nn.Module) -> list[str] | None:
    """Returns the first attention layer's query and value projections as targets of `insert_lora`; `None`: no such."""
    linear = {name: None for name, module in extractor.named_modules() if isinstance(module, nn.Linear)}
    for name in linear:
        stem, dot, leaf = name.rpartition(".")
        if leaf == _FUSED:
            return [f"{stem}{dot}q", f"{stem}{dot}v"]
        value = f"{stem}{dot}{_QUERY_VALUE.get(leaf)}"
        if value in linear:
            return [name, value]
    return None


def _nearest(server: Server) -> torch.Tensor:
    """Returns the global vector with a head whose logits rank classes by the distance of their prototype."""
    deployed, layout = server.vector.clone(), server.layout
    rows = [server.vector[piece.span].view(piece.shape) for piece in layout.select([f"{_PROTOTYPES}*"])]
    deployed[layout.head] = nearest_mean_head(torch.cat(rows), torch.ones(layout.classes, device=deployed.device))
    return deployed
