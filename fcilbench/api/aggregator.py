"""A federated method: a client half, a server half, and messages of named tensors between them.

The base class is FedAvg with the masked cross-entropy of FCIL (McMahan et al. 2017; Caccia et al. 2021); a method
overrides what it changes. A method that only changes aggregation overrides `aggregate` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.client import Batch, Client, Context, Net
from fcilbench.api.dataset import Samples
from fcilbench.api.memory import Rehearsal
from fcilbench.api.message import Message, Wire
from fcilbench.api.predict import AllClasses, MostConfident, Predictors, TrueTask
from fcilbench.api.schedule import Schedule
from fcilbench.api.server import Server, Updates
from fcilbench.errors import nearest
from fcilbench.spec.cell import Role, Roles
from fcilbench.spec.plugin import Plugin
from fcilbench.spec.protocol import Protocol, TaskIdentity

CARD = ("family", "trained", "travels", "memory", "source")
"""The lines of a method's card, in the order in which lists show them."""


@dataclass(frozen=True)
class No:
    """The method does not run on this cell; the row is `skipped` with this reason."""

    reason: str


@dataclass(frozen=True)
class Request:
    """The cell that a method is asked to run on.

    Attributes:
        modality: `vision`, `text` or `array`: what the data set has.
        classes: Number of classes C.
        tasks: Number of classes of each task.
        clients: Number of registered clients N.
        backbone: Facts of the backbone: its `facts()` and its hyperparameters under `params`.
        class_names: The name of each class, in internal order.
    """

    modality: str
    classes: int
    tasks: tuple[int, ...]
    clients: int
    protocol: Protocol
    backbone: Mapping[str, Any]
    class_names: tuple[str, ...] = ()


class Aggregator(Plugin):
    """Base of all methods; by itself FedAvg.

    The hooks of the client half see one client's data and the messages that it received, those of the server half see
    uploads and the method's state. They share nothing else: no attribute of the plugin object.

    `loss` is a *function of tensors*, so that it can be captured in a CUDA graph: it may use the network handle, the
    batch and the context, and must not call `.item()`, branch on values, or keep state on `self`.

    Attributes:
        trains: Whether clients train and send an update. Clients of a training-free method receive the initial model
            once, and send their `statistics` only.
        lr_range: Learning rates between which `fcilbench tune` draws, log-uniformly; `None` is 1e-5 to 1e-2, and 1e-4
            to 1e-1 with `optimizer: sgd`. A method that trains few weights on a frozen backbone needs larger ones.
        role: What boards show it as: a `method`; a `control`, which a claim must beat (‡); or a `reference` that
            competes with nothing (§), as centralised training. A map says it for single task identities:
            `{"oracle": "control"}`. A subclass does not inherit it.
        card: What readers compare methods by, in a few words each: its `family`, what is `trained`, what `travels`
            between clients and server, what `memory` of its own making a client keeps from one visit to the next (a
            teacher that it was sent is no part of it), and its `source`. Lists and pages show it; nothing is computed
            from it, and like a docstring it makes no row stale.
    """

    trains: ClassVar[bool] = True
    lr_range: ClassVar[tuple[float, float] | None] = None
    role: ClassVar[Role | Mapping[TaskIdentity, Role]] = "method"
    card: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Returns what a plan and a board must know of the method.

        That is whether it trains, the range of its learning rate, whether it rearranges the schedule, its roles, and
        its card.

        Raises:
            ValueError: If its `role` is none, or its `card` has an unknown line.
        """
        own = cls.build_schedule is not Aggregator.build_schedule
        for line in cls.card:
            if line not in CARD:
                raise ValueError(f"card = {dict(cls.card)!r}: unknown {line!r}{nearest(line, CARD)}")
        return {
            "trains": cls.trains,
            "lr_range": cls.lr_range,
            "own_schedule": own,
            "roles": cls._roles(),
            "card": dict(cls.card),
        }

    @classmethod
    def _roles(cls) -> Roles:
        """Returns the class's own roles by task identity, without those of a method."""
        given, identities = vars(cls).get("role", "method"), get_args(TaskIdentity)
        roles: Roles = dict(given if isinstance(given, Mapping) else dict.fromkeys(identities, given))
        for words, legal in ((roles, identities), (roles.values(), get_args(Role))):
            for word in words:
                if word not in legal:
                    raise ValueError(f"role = {given!r}: unknown {word!r}{nearest(str(word), legal)}")
        return {identity: role for identity, role in roles.items() if role != "method"}

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Changes the network once, on the server, before anything is sent: freeze it, insert adapters or prompts.

        `network.extractor` is the backbone's `FeatureExtractor`, `network.head` the classifier `nn.Linear(F, C)`;
        either may be replaced. Random numbers come from torch's global generator, which is seeded by the train seed.

        Returns:
            `No(reason)` if the method is not defined for this cell or this network, which makes the row `skipped`.
        """
        return None

    def build_schedule(self, schedule: Schedule) -> Schedule:
        """Returns the schedule to train; a centralised reference pools clients and tasks here."""
        return schedule

    # ---------------------------------------------------------------- the client half

    def begin_client_task(self, client: Client) -> None:
        """Called before a client's first step in a task, at its first visit: set up `client.state`, choose a memory.

        `client.net` has the received parameters. `client.past` are its samples of the tasks that have ended since its
        last visit: it can still keep some of them (`client.memory`).
        """

    def client_replay(self, client: Client) -> Rehearsal | None:
        """Returns what each step of this visit draws from the client's own kept samples, as `batch.memory`.

        By default one draw from `client.memory`. Called in each visit before local training. The engine transforms and
        augments the samples as it does the client's own.
        """
        return Rehearsal(client.memory)

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the scalar local loss: cross-entropy over the slice of the task's classes, mean over samples.

        mean_i -log softmax(z_i[o : o + c])[y_i - o] with logits z_i `[C]` and the task's classes o .. o + c - 1,
        including those that the client lacks: ACE without replay (Caccia et al. 2022).
        """
        return masked_cross_entropy(net.logits(batch.inputs), batch)

    def gradient(self, gradient: torch.Tensor, net: Net, context: Context) -> None:
        """Changes the flat gradient `[P]` in place before the optimiser step; by default it does nothing.

        Called without autograd. `gradient[net.layout.piece(name).span]` is the gradient of one tensor,
        `net.piece(name)` its value.
        """

    def query(self, net: Net, inputs: torch.Tensor) -> torch.Tensor | None:
        """Returns a memo of each sample `[B, ...]` under the initial network, or `None` if the method needs none.

        Called once for every sample, without gradient, in eval mode and with the test transform, after `prepare`. A
        sample's memo must not depend on the others of its batch. In training it is `batch.memo`, in evaluation
        `context["memo"]` of `net.outputs`.
        """
        return None

    def finish(self, client: Client) -> torch.Tensor | None:
        """Called after local training; returns the vector `[D]` that the client has trained in the end, or `None`.

        By default that of its last step. A method whose client trains several models, or changes what it has trained,
        does it here: `client.net.under(vector)` runs the network with any vector, and gradients flow into it.
        """
        return None

    def statistics(self, client: Client) -> Message:
        """Returns what a client sends beside its update, computed at its trained parameters."""
        return {}

    def task_statistics(self, client: Client) -> Message:
        """Returns what a client sends at the end of a task, computed at the global parameters."""
        return {}

    def encode(self, update: Message, client: Client) -> Message:
        """Returns what a client sends in place of its update: a compressed or private form; by default the update.

        `update` has the pieces that travel (`wire`) by name, float32, in their own shapes: what the client's training
        changed, or what a stressor made of it. Do not change it in place. Each tensor that is returned is counted as it
        is, in int8 one byte a number. `client.net` has the received model here: all that a client knows of its training
        is the update, and what it keeps for later rounds (the error of a rounding) goes into `client.state`. Random
        numbers come from `client.random(purpose)`.
        """
        return update

    # ---------------------------------------------------------------- the server half

    def begin(self, server: Server) -> None:
        """Sets up `server.state` before the first task."""

    def begin_task(self, server: Server) -> None:
        """Called at the start of each task, before its first round; may change `server.vector` through `step`."""

    def wire(self, server: Server) -> Wire:
        """Returns which pieces of the state vector clients train and upload in this round; by default all."""
        return Wire()

    def rates(self) -> Mapping[str, float]:
        """Returns factors of the learning rate by patterns of piece names; the first pattern that matches counts."""
        return {}

    def replay(self, server: Server) -> Samples | None:
        """Returns samples that clients mix into their training of this task, with internal labels, or `None`.

        Inputs are as in a data set: images uint8 `[n, height, width, channels]`, or texts. They are sent to each client
        once a task, and each step draws a batch of them (`batch.extra`) with the training augmentation. Called after
        `begin_task`, and again when a task is resumed: the answer must not change within a task.
        """
        return None

    def random_numbers(self, server: Server) -> int:
        """Returns how many uniform numbers a loss gets for each sample of each step, as `batch.random`.

        They are drawn from the client's keyed stream outside the step, so that it can be captured in a CUDA graph.
        `torch.special.ndtri` makes them normal.
        """
        return 0

    def broadcast(self, server: Server) -> Message:
        """Returns what clients receive beside the global vector; part of the loss's context.

        It is asked in every round. A tensor that a client already holds with equal value (the present global model,
        the model the task began with, or a tensor of an earlier broadcast of the same name) is not sent again and costs
        nothing: what stays the same during a task is sent once a task.
        """
        return {}

    def decode(self, message: Message, server: Server) -> Message:
        """Returns the update in what one client's `encode` has sent: float tensors with its names and shapes.

        They become the client's row of `updates.delta`. It is a function: it changes neither `server.state` nor the
        message, and is called once for each upload, in no certain order. What needs all uploads (a majority, masks that
        cancel) is done in `aggregate`, on the decoded rows.
        """
        return message

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Merges one round's updates into `server.vector`; FedAvg: the sample-weighted mean of everything."""
        server.step(updates.mean())

    def wants_task_statistics(self, server: Server) -> bool:
        """Returns whether clients send `task_statistics` at the end of this task, by default if the hook is overridden.

        It costs a broadcast of the global model.
        """
        return type(self).task_statistics is not Aggregator.task_statistics

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Called after the last round of a task, with the clients' task statistics by client id, in ascending order."""

    def predictors(self, server: Server) -> Predictors:
        """Returns the deployed models and the rule for each task identity; by default the one global model.

        Called at the end of each task; with `runtime: {analysis: [curve]}` during tasks as well.
        """
        return Predictors(
            modules={"global": lambda: server.vector},
            rules={"none": AllClasses(), "inferred": MostConfident(), "oracle": TrueTask()},
        )

    def export(self, server: Server) -> Message:
        """Returns the tensors that the method deploys, for `fcilbench module export`; by default the global vector.

        A packed form may add the scalar `dense_bytes`: the bytes of the same tensors unpacked.
        """
        return {"theta": server.vector}


def masked_cross_entropy(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Returns the float32 cross-entropy of logits `[B, C]` over the slice of the batch's task, mean over its samples.

    Of replayed samples (`batch.extra`, `batch.memory`) each is compared within its own task. It is 0 for a batch of
    padding only.
    """
    task = batch.task
    if batch.slices is not None:
        classes, (first, end) = torch.arange(logits.shape[1], device=logits.device), batch.slices.unbind(1)
        outside = (classes < first[:, None]) | (classes >= end[:, None])
        logits = logits.float().masked_fill(outside, -torch.inf)
        return batch.mean(F.cross_entropy(logits, batch.labels, reduction="none"))
    return batch.mean(F.cross_entropy(logits[:, task.classes].float(), task.local(batch.labels), reduction="none"))


def seen_cross_entropy(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Returns the float32 cross-entropy of logits `[B, C]` over all classes seen so far, mean over the samples.

    Replayed samples compete among all classes seen, where those of the task compete in its slice (Caccia et al. 2022).
    """
    return batch.mean(F.cross_entropy(logits[:, : batch.task.seen].float(), batch.labels, reduction="none"))
