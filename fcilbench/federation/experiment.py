"""One experiment: the declared parts, and the federation that `fcilbench.federation.build` makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import Backbone
from fcilbench.api.dataset import Dataset
from fcilbench.api.message import Message
from fcilbench.api.schedule import Phase, Schedule
from fcilbench.api.stressor import Stressor
from fcilbench.engine.data import DeviceData
from fcilbench.engine.model import FlatModel
from fcilbench.engine.trainer import Trainer
from fcilbench.federation.channel import Channel
from fcilbench.federation.evaluation import Evaluator
from fcilbench.federation.server import FederationServer
from fcilbench.federation.tasks import TaskStream
from fcilbench.spec.protocol import Evaluation, Partition, Protocol, Runtime, Seeds


class Unsupported(Exception):  # noqa: N818 -- an answer, not an error
    """The method declares that it does not run on this cell; the message is its reason."""


@dataclass(frozen=True)
class Experiment:
    """Everything one experiment depends on; it does not know which cell of which grid it is.

    Attributes:
        dataset: Data set plugin.
        backbone: Backbone plugin.
        aggregator: The method.
        stressor: What goes wrong.
        protocol: Federated protocol.
        partition: How samples are spread over clients.
        tasks: Number of equal tasks, classes of each task, or `None` for the data set's default.
        seeds: Seeds of order, partition and training.
        evaluate: Task identities to measure.
        runtime: Threads, batch size of evaluation, checkpoints.
        data_root: Where data sets and weights live.
        device: `cpu` or `cuda`.
        declared_fingerprint: Content digest that the plan was made for; "" if none was declared.
    """

    dataset: Dataset
    backbone: Backbone
    aggregator: Aggregator
    stressor: Stressor
    data_root: Path
    protocol: Protocol = field(default_factory=Protocol)
    partition: Partition = field(default_factory=lambda: Partition(kind="dirichlet", value=0.5))
    tasks: int | tuple[int, ...] | None = None
    seeds: Seeds = field(default_factory=Seeds)
    evaluate: Evaluation = field(default_factory=Evaluation)
    runtime: Runtime = field(default_factory=Runtime)
    device: str = "cpu"
    declared_fingerprint: str = ""


@dataclass(frozen=True)
class RoundContext:
    """Where the schedule stands.

    Attributes:
        phase: The phase that is trained.
        round: Round within it, from 0; `phase.rounds` at the task's end.
    """

    phase: Phase
    round: int

    @property
    def key(self) -> tuple[int, int]:
        """Coordinates of random streams: (last task seen, round)."""
        return (self.phase.after, self.round)


@dataclass(frozen=True)
class Replay:
    """Samples that clients mix into their training of a task (`Aggregator.replay`).

    Attributes:
        data: The samples on the device.
        message: The same samples as they are sent.
    """

    data: DeviceData
    message: Message


@dataclass
class Federation:
    """An experiment made real: data on the device, the model, the clients' samples, the server.

    Attributes:
        experiment: What it was built from.
        stream: The task stream.
        schedule: Phases to train, as the method arranged them.
        train: Training samples on the device.
        test: Test samples on the device.
        test_index: Positions of each task's test samples.
        model: The one resident model.
        trainer: Local training on it.
        server: The server.
        channel: Delivers messages and counts their bytes.
        evaluator: Runs deployed modules over test samples.
        initial: The initial state vector, for phases that restart.
        class_names: Original class names.
        fingerprint: Content digest of the data that was loaded.
        clients: State of each client by id.
        replay: Samples that clients mix into the training of the current task.
    """

    experiment: Experiment
    stream: TaskStream
    schedule: Schedule
    train: DeviceData
    test: DeviceData
    test_index: tuple[torch.Tensor, ...]
    model: FlatModel
    trainer: Trainer
    server: FederationServer
    channel: Channel
    evaluator: Evaluator
    initial: torch.Tensor
    class_names: tuple[str, ...]
    fingerprint: str
    clients: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    replay: Replay | None = None
