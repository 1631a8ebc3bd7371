"""CCVR: classifier calibration with virtual representations.

Luo et al. 2021, "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data". First the
method, then the statistics of its class Gaussians, the virtual features and the refit of the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F

from fcilbench.api import (
    Aggregator,
    Client,
    Field,
    Message,
    PresetParams,
    Server,
    Space,
    Updates,
    pack_symmetric,
    unpack_symmetric,
)
from fcilbench.vectors.class_means import scatter_rows

_PEER = "fed-mammoth"
_LEAST = 1e-8
"""Variance added to every direction, so that none is zero."""
_RHO_FEW, _RHO_MANY = 0.1, 0.01
"""Shrinkage of the whole covariance of a class with at most F samples, and of the others; ours."""


class CcvrParams(PresetParams):
    """Hyperparameters of CCVR."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"cov": "full"}}

    scope: Literal["seen", "current"] = Field(
        "seen",
        description="refit all seen classes, by statistics that age with the backbone, or the task's only",
        source="Luo et al. 2021 calibrate all classes",
    )
    cov: Literal["diag", "full"] = Field("diag", description="variances, or whole covariance matrices")
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
    when: Literal["task_end", "round"] = Field(
        "task_end", description="refit at the end of a task, or after each round from features of the local models"
    )


class Ccvr(Aggregator):
    """Classifier Calibration with Virtual Representations: refits the head on features drawn from class Gaussians.

    Clients send count, mean and scatter of each class's features `[n, F]`; the server pools them exactly and refits the
    head by cross-entropy on draws from N(mean_c, covariance_c). Luo et al. 2021 do so once after training, for all
    classes with full covariances; here it is done at the end of every task, for all classes seen, with variances.
    Clients train with the masked cross-entropy and models are averaged by FedAvg.

    The refitted head is part of the global model: it is what is deployed and what later rounds start from. Head rows of
    classes without statistics, and the backbone, stay as they are, bit for bit.
    """

    version = "2"
    card: ClassVar = {
        "family": "prototypes",
        "trained": "the whole model",
        "travels": "the model; mean and covariance of each class once a task",
        "memory": "nothing",
        "source": "Luo et al. 2021, NeurIPS",
    }

    class Params(CcvrParams):
        """Hyperparameters of CCVR."""

    params: CcvrParams

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends the same as at the end of a task, of the local model, where each round refits the head."""
        return self.task_statistics(client) if self.params.when == "round" else {}

    def task_statistics(self, client: Client) -> Message:
        """Sends all counts of the task `[c]`, and mean and M2 (variances or triangles) of the classes present."""
        return class_statistics(client, self.params.cov == "full")

    # ---------------------------------------------------------------- server

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages the updates by sample count, and refits the head where each round does."""
        super().aggregate(updates, server)
        if self.params.when == "round":
            self._refit(server, updates.statistics)

    def wants_task_statistics(self, server: Server) -> bool:
        """Asks for statistics at the final global model of every task, unless each round has its own."""
        return self.params.when == "task_end"

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Refits the head at the end of a task."""
        self._refit(server, list(statistics.values()))

    def _refit(self, server: Server, statistics: Sequence[Message]) -> None:
        """Refits the head rows of all classes with statistics, in the scope."""
        params = self.params
        if not statistics or params.samples == 0:  # without clients that have data nothing new is known
            return
        rows, found = self._collect(server, [dict(message) for message in statistics])
        root = roots(covariances(found))
        features = partial(draw, found.mean, root, params.samples)
        loss = refit_rows(server, rows, features, params, server.random("ccvr"))
        server.log("ccvr/loss", loss)
        server.log("ccvr/classes", len(rows))

    def _collect(self, server: Server, messages: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, Gaussians]:
        """Returns the labels `[a]` and pooled statistics of all classes in the scope that have samples."""
        kept: dict[int, list[dict[str, torch.Tensor]]] = {}
        if self.params.scope == "seen":
            kept = server.state.setdefault("statistics", {})
        kept[server.task.offset] = messages
        labels, parts = [], []
        for offset, sent in sorted(kept.items()):
            pooled = merge([unpack(message, self.params.cov == "full") for message in sent])
            present = pooled.count.nonzero()[:, 0]
            labels.append(offset + present)
            parts.append(pooled[present])
        columns = zip(*((part.count, part.mean, part.scatter) for part in parts), strict=True)
        return torch.cat(labels), Gaussians(*(torch.cat(column) for column in columns))


@dataclass(frozen=True)
class Gaussians:
    """Statistics of c classes, float64: count, mean and scatter, never a variance, so that one sample is valid.

    Attributes:
        count: Samples n, `[c]`; a class without any has zeros everywhere.
        mean: `[c, F]`.
        scatter: M2 = sum (f - mean)(f - mean)^T, `[c, F, F]`, or its diagonal `[c, F]`.
    """

    count: torch.Tensor
    mean: torch.Tensor
    scatter: torch.Tensor

    @property
    def full(self) -> bool:
        """Whether whole matrices are kept."""
        return self.scatter.dim() == 3

    def __getitem__(self, classes: torch.Tensor) -> Gaussians:
        return Gaussians(self.count[classes], self.mean[classes], self.scatter[classes])


def class_statistics(client: Client, full: bool) -> Message:
    """Returns all counts of a client's task `[c]`, and mean and M2 (variances or triangles) of the classes present."""
    task = client.task
    labelled = ((client.net.features(batch.inputs), task.local(batch.labels)) for batch in client.batches())
    found = measure(labelled, task.size, client.feature_dim, full)
    own = found[found.count > 0]
    scatter = torch.stack([pack_symmetric(matrix) for matrix in own.scatter]) if full else own.scatter
    return {"count": found.count.to(torch.int32), "mean": own.mean.float(), "scatter": scatter.float()}


def unpack(message: Message, full: bool) -> Gaussians:
    """Returns the statistics in a message of `class_statistics`, of all classes of its task."""
    count, scatter = message["count"].to(torch.float64), message["scatter"]
    if full:
        size = message["mean"].shape[1]
        scatter = torch.stack([unpack_symmetric(triangle, size) for triangle in scatter])
    return Gaussians(count, scatter_rows(message["mean"], count), scatter_rows(scatter, count))


def measure(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], classes: int, features: int, full: bool) -> Gaussians:
    """Measures classes on batches of features `[n, F]` with labels in `0..classes-1` `[n]`, which are merged exactly.

    `full` keeps whole matrices instead of their diagonals.
    """
    shape = (classes, features, features) if full else (classes, features)
    zeros = [torch.zeros(size, dtype=torch.float64) for size in ((classes,), (classes, features), shape)]
    found = Gaussians(*zeros)
    for rows, labels in batches:
        before = Gaussians(*(x.to(rows.device) for x in (found.count, found.mean, found.scatter)))
        found = merge([before, _of_batch(rows.to(torch.float64), labels, classes, full)])
    return found


def _of_batch(rows: torch.Tensor, labels: torch.Tensor, classes: int, full: bool) -> Gaussians:
    member = F.one_hot(labels, classes).to(torch.float64)
    count = member.sum(dim=0)
    mean = (member.T @ rows) / count.clamp(min=1)[:, None]
    centred = rows - mean[labels]
    if not full:
        return Gaussians(count, mean, member.T @ centred.square())
    own = [centred[labels == c] for c in range(classes)]
    return Gaussians(count, mean, torch.stack([members.T @ members for members in own]))


def merge(parts: Sequence[Gaussians]) -> Gaussians:
    """Returns the statistics of the pooled samples, exactly, and without differences of large numbers.

    n = sum n_k, mu = sum n_k mu_k / n, M2 = sum M2_k + sum n_k (mu_k - mu)(mu_k - mu)^T.
    """
    count = torch.stack([part.count for part in parts]).sum(dim=0)
    weighted = torch.stack([part.count[:, None] * part.mean for part in parts]).sum(dim=0)
    mean = weighted / count.clamp(min=1)[:, None]
    scatter = torch.zeros_like(parts[0].scatter)
    for part in parts:
        apart = part.mean - mean
        between = apart[:, :, None] * apart[:, None, :] if part.full else apart.square()
        scatter += part.scatter + part.count.view(-1, *[1] * (scatter.dim() - 1)) * between
    return Gaussians(count, mean, scatter)


def covariances(found: Gaussians) -> torch.Tensor:
    """Returns a usable covariance of every class: M2 / (n - 1) with what few samples leave open repaired.

    A class of one sample gets the mean covariance of the others, or none if there are no others. Diagonals get
    `_LEAST` added; matrices are shrunk towards a multiple of the identity, (1 - rho) S + rho (tr S / F) I.
    Every class must have a sample. The result is float64, `[c, F, F]` or diagonals `[c, F]`.
    """
    several = found.count > 1
    shape = (-1, *[1] * (found.scatter.dim() - 1))
    raw = found.scatter / (found.count - 1).clamp(min=1).view(shape)
    shared = raw[several].mean(dim=0) if bool(several.any()) else torch.zeros_like(raw[0])
    own = torch.where(several.view(shape), raw, shared)
    if not found.full:
        return own + _LEAST
    size = own.shape[-1]
    rho = torch.where(found.count > size, _RHO_MANY, _RHO_FEW).to(own).view(shape)
    level = own.diagonal(dim1=1, dim2=2).mean(dim=1).view(shape)
    identity = torch.eye(size, dtype=own.dtype, device=own.device)
    return (1 - rho) * own + (rho * level + _LEAST) * identity


def roots(covariance: torch.Tensor) -> torch.Tensor:
    """Returns factors A with A A^T = covariance: standard deviations `[c, F]`, or factors `[c, F, F]`, by Cholesky.

    Where rounding leaves a matrix indefinite, a jitter relative to its diagonal is multiplied by 10 until it is not.
    Variances that are negative by more than rounding, as a client that uploads noise makes them, count as 0.
    """
    if covariance.dim() == 2:
        return covariance.clamp(min=0.0).sqrt()
    return torch.stack([_cholesky(matrix) for matrix in covariance])


def _cholesky(matrix: torch.Tensor) -> torch.Tensor:
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    jitter = 0.0
    factor: torch.Tensor
    for power in range(-13, 0):
        factor, info = torch.linalg.cholesky_ex(matrix + jitter * identity)
        if int(info) == 0:
            return factor
        jitter = 10.0**power * float(matrix.diagonal().mean())
    values, vectors = torch.linalg.eigh(matrix)
    factor = vectors * values.clamp(min=0.0).sqrt()
    return factor


def draw(
    mean: torch.Tensor, root: torch.Tensor, samples: int, random: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws `samples` features of each class, on the CPU, so that every device sees the same numbers.

    Means are `[a, F]`, `root` the factors A of the covariances A A^T, `[a, F]` or `[a, F, F]`. Returns features float32
    `[n, F]`, class by class, and the rows of their classes int64 `[n]`.
    """
    rows = torch.arange(len(mean), device=mean.device).repeat_interleave(samples)
    noise = torch.from_numpy(random.standard_normal((len(rows), mean.shape[1]))).to(mean)
    if root.dim() == 2:
        moved = root[rows] * noise
    else:
        moved = torch.cat([own @ factor.T for own, factor in zip(torch.split(noise, samples), root, strict=True)])
    return (mean[rows] + moved).float(), rows


Draw = Callable[[np.random.Generator], tuple[torch.Tensor, torch.Tensor]]
"""Draws the features of one epoch `[n, F]`, and the rows `[n]` of their classes among those that are refitted."""


def refit_rows(
    server: Server,
    rows: torch.Tensor,
    draw: Draw,
    params: CcvrParams,
    random: np.random.Generator,
    *,
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
) -> float:
    """Refits the global head's rows of some classes `[a]` as `refit_head` does; returns the last epoch's mean loss."""
    parts = server.layout
    head = server.vector[parts.head]
    cut = parts.classes * parts.features
    weight, bias = head[:cut].view(parts.classes, parts.features), head[cut:]
    new_weight, new_bias, loss = refit_head(weight[rows], bias[rows], draw, params, random, objective=objective)
    direction = torch.zeros_like(head)
    direction[:cut].view_as(weight)[rows] = new_weight - weight[rows]
    direction[cut:][rows] = new_bias - bias[rows]
    server.step(direction, parts.head)
    return loss


def refit_head(
    weight: torch.Tensor,
    bias: torch.Tensor,
    draw: Draw,
    params: CcvrParams,
    random: np.random.Generator,
    *,
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Minimises the objective of some head rows' logits among each other, by SGD with a cosine schedule.

    Rows `[a, F]` and biases `[a]` are left unchanged; `draw` gives the features `[n, F]` and head rows `[n]` of one
    epoch. Returns the refitted rows and biases, and the mean loss of the last epoch.
    """
    w, b = weight.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_()
    optimiser = torch.optim.SGD([w, b], lr=params.lr_head, momentum=params.momentum)
    last = torch.zeros(())
    with torch.enable_grad():
        for epoch in range(params.epochs):
            for group in optimiser.param_groups:
                group["lr"] = 0.5 * params.lr_head * (1 + math.cos(math.pi * epoch / params.epochs))
            features, labels = draw(random)
            order = torch.from_numpy(random.permutation(len(labels))).to(labels.device)
            losses = []
            for rows in torch.split(order, params.batch_size):
                loss = objective(features[rows] @ w.T + b, labels[rows])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                losses.append(loss.detach())
            last = torch.stack(losses).mean()
    return w.detach(), b.detach(), float(last)
