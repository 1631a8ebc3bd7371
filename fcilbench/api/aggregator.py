"""A federated method: a client half, a server half, and messages of named tensors between them.

The base class is FedAvg with the masked cross-entropy of FCIL (McMahan et al. 2017; Caccia et al. 2021); a method
overrides what it changes. A method that only changes aggregation overrides `aggregate` and nothing else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.client import Batch, Client, Context, Net
from fcilbench.api.message import Message
from fcilbench.api.predict import AllClasses, MostConfident, Predictors, TrueTask
from fcilbench.api.schedule import Schedule
from fcilbench.api.server import Server, Updates
from fcilbench.spec.plugin import Plugin
from fcilbench.spec.protocol import Protocol


@dataclass(frozen=True)
class Traits:
    """The six columns by which Kim and Do 2026 compare FCIL methods (table 1).

    Attributes:
        extra_objective: Clients optimise more than the task loss.
        replay: Real or synthetic samples of earlier tasks are used.
        extra_memory: Clients store more than one model.
        training_modification: Local training itself is changed.
        server_only: All of the method runs on the server.
        interaction_modelling: Interactions between updates are modelled.
    """

    extra_objective: bool = False
    replay: bool = False
    extra_memory: bool = False
    training_modification: bool = False
    server_only: bool = False
    interaction_modelling: bool = False


@dataclass(frozen=True)
class Yes:
    """The method runs on this cell."""


@dataclass(frozen=True)
class No:
    """The method does not run on this cell; the row is `skipped` with this reason."""

    reason: str


@dataclass(frozen=True)
class Request:
    """What `supports` is asked about.

    Attributes:
        modality: `vision` or `text`.
        classes: Number of classes C.
        tasks: Classes of each task.
        protocol: The federated protocol.
    """

    modality: str
    classes: int
    tasks: tuple[int, ...]
    protocol: Protocol


class Aggregator(Plugin):
    """Base of all methods; by itself FedAvg.

    What a client optimises is a *function of tensors*: `loss` may use the network handle, the batch and the context
    tensors, and must not call `.item()`, branch on values, or keep state on `self`; then the engine may capture it in
    a CUDA graph.

    Attributes:
        traits: Columns of the comparison table.
        task_end_statistics: Whether clients send `task_statistics` at the final global model of each task; it costs
            them a broadcast.
        held_model: Name of the tensor in `task_broadcast` that is the state vector `[D]` with which the task began, if
            there is one (an anchor, a teacher). It is sent only to clients that do not hold that model anyway.
        trains: Whether clients train and send an update. A training-free method says no: its clients receive the
            initial model once, and send their `statistics` only.
    """

    traits: ClassVar[Traits] = Traits()
    task_end_statistics: ClassVar[bool] = False
    held_model: ClassVar[str | None] = None
    trains: ClassVar[bool] = True

    # ---------------------------------------------------------------- the experiment

    def supports(self, request: Request) -> Yes | No:
        """Says whether the method is defined for a cell."""
        return Yes()

    def build_schedule(self, schedule: Schedule) -> Schedule:
        """Returns the schedule to train; a centralised reference pools clients and tasks here."""
        return schedule

    def prepare(self, network: nn.Module) -> None:
        """Changes the network once, on the server, before it is broadcast: freeze, add adapters or prompts."""

    # ---------------------------------------------------------------- the client half

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the scalar local loss: cross-entropy over the slice of the task's classes, mean over samples.

        mean_i -log softmax(z_i[o : o + c])[y_i - o] with logits z_i `[C]` and the task's classes o .. o + c - 1, those
        that the client lacks included: ACE without replay (Caccia et al. 2022).
        """
        return masked_cross_entropy(net.logits(batch.inputs), batch)

    def gradient(self, gradient: torch.Tensor, theta: torch.Tensor, context: Context) -> None:
        """Changes the flat gradient `[P]` in place before the optimiser step; by default it is left alone."""

    def statistics(self, client: Client) -> Message:
        """Returns what a client sends beside its update, computed at its own trained parameters."""
        return {}

    def task_statistics(self, client: Client) -> Message:
        """Returns what a client sends at the end of a task, computed at the global parameters."""
        return {}

    # ---------------------------------------------------------------- the server half

    def begin(self, server: Server) -> None:
        """Sets up `server.state` before the first round."""

    def broadcast(self, server: Server) -> Message:
        """Returns what clients receive in every round beside the global vector; part of the loss's context."""
        return {}

    def task_broadcast(self, server: Server) -> Message:
        """Returns what a client receives once per task, when it first takes part; part of the loss's context."""
        return {}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Merges one round's updates into `server.vector`; FedAvg: the sample-weighted mean of everything."""
        server.step(updates.mean())

    def wants_task_statistics(self, server: Server) -> bool:
        """Says whether clients are asked for `task_statistics` at the end of this task; by default always or never."""
        return self.task_end_statistics

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Called after the last round of a task, with the clients' task statistics by client id."""

    def predictors(self, server: Server) -> Predictors:
        """Says how the method answers under each task identity; by default with the one global model."""
        return Predictors(
            modules={"global": lambda: server.vector},
            answers={"none": AllClasses(), "inferred": MostConfident(), "oracle": TrueTask()},
        )

    def export(self, server: Server) -> Message:
        """Returns the tensors of its deployable module for `fcilbench module export`; by default the global vector.

        Names that begin with `module.` are the packed module of `fcilbench.vectors.pack`.
        """
        return {"theta": server.vector}

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Returns the traits."""
        return {"traits": asdict(cls.traits)}


def masked_cross_entropy(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Cross-entropy over the slice of the batch's task, mean over the unmasked samples, in float32.

    Args:
        logits: `[B, C]` over all classes.
        batch: Labels, mask and task.

    Returns:
        Scalar; 0 for a batch of padding only.
    """
    task = batch.task
    losses = F.cross_entropy(logits[:, task.classes].float(), task.local(batch.labels), reduction="none")
    return (losses * batch.mask).sum() / batch.mask.sum().clamp(min=1.0)
