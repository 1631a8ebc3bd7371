"""One experiment: the declared parts, and the federation that is built of them: data on the device, model, server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fcilbench.api.aggregator import Aggregator, No, Request
from fcilbench.api.backbone import Backbone, TextBackbone
from fcilbench.api.dataset import Augmentation, Corpus, Dataset, Samples
from fcilbench.api.message import Message
from fcilbench.api.schedule import Indices, Phase, Schedule, Task
from fcilbench.api.selector import Selector
from fcilbench.api.stressor import Stressor, Turn
from fcilbench.data.open import open_dataset
from fcilbench.engine.data import DeviceArrays, DeviceData, DeviceImages, DeviceTokens
from fcilbench.engine.features import StartingPasses, structure
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.precision import autocast
from fcilbench.engine.trainer import Trainer
from fcilbench.errors import DataError, PartitionError, PrerequisiteError
from fcilbench.federation.channel import Channel
from fcilbench.federation.convergence import Best, hold_out_samples
from fcilbench.federation.evaluation import Evaluator
from fcilbench.federation.fit import check_adapters, misfit
from fcilbench.federation.record import ClientRecord
from fcilbench.federation.server import FederationServer
from fcilbench.federation.stress import Stress
from fcilbench.federation.tasks import TaskStream, partition, seed_torch, stream, validation_split
from fcilbench.spec.cell import split_classes
from fcilbench.spec.outcome import DATA
from fcilbench.spec.protocol import Evaluation, Partition, Protocol, Runtime, Scored, Seeds, scored_under

_QUERY_BATCH = 128
"""Samples per call of a method's query; not an option, because results must not depend on it."""


class Unsupported(Exception):  # noqa: N818 -- an answer, not an error
    """The method declares that it does not run on this cell; the message is its reason."""


@dataclass(frozen=True)
class Experiment:
    """Everything that one experiment depends on; it does not know which cell of which grid it is.

    Attributes:
        tasks: Number of equal tasks, classes of each task, or `None` for the data set's default.
        selectors: What picks the task under `inferred`, by what is scored under it (`inferred:ridge`).
        declared_fingerprint: Content digest that the plan was made for; "" if none was declared.
        most_rounds: Largest number of rounds of a phase, for a trial of the plugins; `None`: as many as are declared.
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
    selectors: Mapping[Scored, Selector] = field(default_factory=lambda: {"inferred": Selector()})
    runtime: Runtime = field(default_factory=Runtime)
    device: str = "cpu"
    declared_fingerprint: str = ""
    most_rounds: int | None = None

    @property
    def scored(self) -> list[Scored]:
        """Everything that the method is scored under: task identities, with one entry for each selector."""
        return scored_under(self.evaluate.task_identity, self.selectors)


@dataclass(frozen=True)
class RoundContext:
    """The phase that is trained, and the round within it, from 0; `phase.rounds` at the task's end."""

    phase: Phase
    round: int

    @property
    def key(self) -> tuple[int, int]:
        """Coordinates of random streams: (last task seen, round)."""
        return (self.phase.after, self.round)


@dataclass(frozen=True)
class Replay:
    """Samples that clients mix into their training (`Aggregator.replay`), on the device and as they are sent."""

    data: DeviceData
    message: Message


@dataclass
class Federation:
    """An experiment ready to run: data on the device, the one resident model, the clients' samples, the server.

    Attributes:
        test: Test samples on the device, or the held-out ones that replace them (`Protocol.validation`).
        held_out: Positions of the training samples that tell when a phase has converged, by phase; empty for a phase
            of a fixed number of rounds.
        best: The best round so far of a phase that trains until convergence.
        clients: What each client keeps between its visits; of those that were visited.
        replay: Samples that clients mix into the training of the current task.
    """

    experiment: Experiment
    stream: TaskStream
    schedule: Schedule
    train: DeviceData
    test: DeviceData
    test_index: tuple[torch.Tensor, ...]
    held_out: tuple[Indices, ...]
    model: FlatModel
    trainer: Trainer
    server: FederationServer
    channel: Channel
    evaluator: Evaluator
    class_names: tuple[str, ...]
    fingerprint: str
    clients: dict[int, ClientRecord] = field(default_factory=dict)
    replay: Replay | None = None
    best: Best | None = None

    def held_out_evaluator(self, phase: int) -> Evaluator:
        """Returns an evaluator of the samples that tell when a phase has converged, as the one task that it knows."""
        index = torch.from_numpy(self.held_out[phase]).to(self.train.labels.device)
        precision, size = self.experiment.protocol.precision, self.experiment.runtime.eval_batch_size
        return Evaluator(self.model, test=self.train, index=[index], ood=None, precision=precision, batch_size=size)

    def turn(self, context: RoundContext) -> Turn:
        """Returns a round, or the end of a task, as stressors see it."""
        seed, phase = self.experiment.seeds.of("train"), context.phase

        def random(client: int | None) -> np.random.Generator:
            who = ("stress-together",) if client is None else ("stress-upload",)
            return stream(seed, *who, *context.key, *(() if client is None else (client,)))

        affected = tuple(sorted(self.channel.affected))
        return Turn(phase.task, len(self.stream.sizes), context.round, phase.rounds, affected, random)

    @property
    def initial(self) -> torch.Tensor:
        """The state vector `[D]` before training, for phases that restart."""
        return self.evaluator.initial


def build(experiment: Experiment, decoding: Callable[[int, int], None] | None = None) -> Federation:
    """Loads data and weights and builds the federation.

    `decoding` is called with the number of samples done and of all samples while the data set's cache is made.

    Raises:
        Unsupported: If the method does not run on this cell.
        PrerequisiteError: If data, weights or the device are missing.
    """
    if experiment.device.startswith("cuda") and not torch.cuda.is_available():
        raise PrerequisiteError("no CUDA device is available", hint="run with --gpus none to use the CPU")
    device, protocol, method = torch.device(experiment.device), experiment.protocol, experiment.aggregator
    corpus, fingerprint = _corpus(experiment, decoding)
    classes = len(corpus.class_names)
    sizes = split_classes(experiment.tasks, classes, experiment.dataset.default_tasks)
    tasks = TaskStream.draw(classes, sizes, experiment.seeds.of("order"))
    labels, test_labels = tasks.internal(corpus.train.labels), tasks.internal(corpus.test.labels)
    phases = _phases(experiment, tasks.tasks, labels)
    affected, stressed = _stress(experiment, phases, labels)
    model = _model(experiment, sizes, tuple(itertools.chain(*tasks.names(corpus.class_names))), device)
    train = place(experiment, model, Samples(corpus.train.inputs, stressed), experiment.dataset.augmentation)
    test = place(experiment, model, Samples(corpus.test.inputs, test_labels))
    index, ood = _test_positions(test_labels, tasks, corpus.class_names, device), None
    if corpus.outside is not None:
        ood = place(experiment, model, Samples(corpus.outside, np.full(len(corpus.outside), -1)))
    schedule, held_out = _schedule(experiment, phases, stressed)
    federation = Federation(
        experiment=experiment,
        stream=tasks,
        schedule=schedule,
        train=train,
        test=test,
        test_index=index,
        held_out=held_out,
        model=model,
        trainer=Trainer(
            model, train, protocol, experiment.runtime.capture == "auto", method.rates(), tasks=tasks.tasks
        ),
        server=_server(experiment, model, tasks),
        # A centralised reference has no clients that could misbehave; wrong labels are in its data all the same.
        channel=Channel(
            model.layout,
            Stress(experiment.stressor, affected if schedule.federated else frozenset()),
            schedule.federated,
        ),
        evaluator=Evaluator(
            model,
            test=test,
            index=index,
            ood=ood,
            precision=protocol.precision,
            batch_size=experiment.runtime.eval_batch_size,
        ),
        class_names=corpus.class_names,
        fingerprint=fingerprint,
    )
    for remark in corpus.remarks:
        federation.server.warn(f"{DATA}{remark}")
    _warn_of_right_labels(experiment, federation, labels, stressed)
    return federation


def _warn_of_right_labels(experiment: Experiment, federation: Federation, labels: Indices, stressed: Indices) -> None:
    if type(experiment.stressor).labels is not Stressor.labels and np.array_equal(labels, stressed):
        federation.server.warn("stress: every label stays right, as after a shift by all classes of a task")


def _server(experiment: Experiment, model: FlatModel, tasks: TaskStream) -> FederationServer:
    """Builds the server's side of the federation."""
    images = experiment.dataset.modality == "vision"
    return FederationServer(
        *(model.vector, model.counters, model.layout, tasks.tasks),
        protocol=experiment.protocol,
        seed=experiment.seeds.of("train"),
        model=model,
        image_input=experiment.backbone.image_input() if images else None,
    )


def _corpus(experiment: Experiment, decoding: Callable[[int, int], None] | None) -> tuple[Corpus, str]:
    """Returns the data and their digest; for validation, training samples stand in for the test samples."""
    corpus, fingerprint = open_dataset(experiment.dataset, experiment.data_root, decoding)
    if experiment.declared_fingerprint not in ("", fingerprint):
        raise DataError(f"the data has digest {fingerprint}, the plan was made for {experiment.declared_fingerprint}")
    if share := experiment.protocol.validation:
        random = stream(experiment.seeds.of("partition"), "validation")
        kept, held = validation_split(corpus.train.labels, share, random, corpus.class_names)
        train, test = corpus.train.take(kept), corpus.train.take(held)
        corpus = Corpus(train, test, corpus.class_names, remarks=corpus.remarks)
    if reason := misfit(experiment.backbone, experiment.dataset):
        raise Unsupported(reason)
    return corpus, fingerprint


def place(
    experiment: Experiment, model: FlatModel, samples: Samples, augmentation: Augmentation | None = None
) -> DeviceData:
    """Puts samples on the device, images as uint8, texts as token ids, with the answers of the method's query.

    The samples have internal labels; the initial network must be loaded. Arrays are augmented by their own transform.
    """
    backbone, device = experiment.backbone, model.vector.device
    data: DeviceData
    if isinstance(backbone, TextBackbone):
        texts = [str(text) for text in samples.inputs]
        sizes = torch.tensor([len(text.encode()) for text in texts], dtype=torch.int64)
        data = DeviceTokens(backbone.encode(texts), samples.labels, device, sizes)
    elif experiment.dataset.modality == "array":
        data = DeviceArrays(samples, experiment.dataset.transform, device)
    else:
        nhwc = model.network.extractor.channels_last and device.type == "cpu"
        layout = torch.channels_last if nhwc else torch.contiguous_format
        data = DeviceImages(samples, backbone.image_input(), augmentation or Augmentation(), device, layout)
    data.memo = _memo(experiment, model, data)
    return data


@torch.no_grad()
def _memo(experiment: Experiment, model: FlatModel, data: DeviceData) -> torch.Tensor | None:
    """Returns the answers of the method's query for all samples, `[n, ...]`, or `None` if it has none."""
    model.network.eval()
    index, answers = torch.arange(len(data), device=data.labels.device), []
    with model.arithmetic(partial(autocast, experiment.protocol.precision, index.device)), model.reading():
        for rows in torch.split(index, _QUERY_BATCH):
            answer = experiment.aggregator.query(model, data.plain(rows))
            if answer is None:
                return None
            answers.append(answer)
    return torch.cat(answers) if answers else None


def place_replay(federation: Federation, samples: Samples | None) -> Replay | None:
    """Puts the samples that clients mix into a task on the device."""
    if samples is None:
        return None
    model, experiment = federation.model, federation.experiment
    model.load(federation.initial, federation.server.counters)
    return Replay(place(experiment, model, samples, experiment.dataset.augmentation), as_message(samples))


def as_message(samples: Samples) -> Message:
    """Returns samples as they are sent: texts as UTF-8 bytes and lengths, others as they are, labels as int64."""
    labels = {"replay/labels": torch.from_numpy(samples.labels)}
    if samples.inputs.dtype != object:
        return {"replay/images": torch.from_numpy(np.ascontiguousarray(samples.inputs)), **labels}
    texts = [str(text).encode() for text in samples.inputs]
    content = torch.from_numpy(np.frombuffer(b"".join(texts), dtype=np.uint8).copy())
    return {"replay/texts": content, "replay/lengths": torch.tensor([len(text) for text in texts]), **labels}


def _phases(experiment: Experiment, tasks: tuple[Task, ...], labels: Indices) -> tuple[Phase, ...]:
    """Partitions each task over the clients; the draw depends on the partition seed and the task alone."""
    protocol = experiment.protocol
    phases = []
    for task in tasks:
        members = _members(labels, task)
        random = stream(experiment.seeds.of("partition"), "partition", task.index)
        try:
            parts = partition(labels[members], protocol.clients, experiment.partition, random)
        except PartitionError as error:
            raise PartitionError(f"task {task.index + 1}: {error.message}", hint=error.hint) from error
        held = tuple(members[part] for part in parts)
        phases.append(Phase(task, held, protocol.rounds, protocol.local_epochs, protocol.batch_size, after=task.index))
    return tuple(phases)


def _schedule(
    experiment: Experiment, phases: tuple[Phase, ...], labels: Indices
) -> tuple[Schedule, tuple[Indices, ...]]:
    """Returns the method's schedule, and for each phase the samples that tell when it has converged.

    `labels` are those on which clients train: a centralised reference knows no better ones.
    """
    schedule, most = experiment.aggregator.build_schedule(Schedule(phases)), experiment.most_rounds
    if most is not None:
        cut = tuple(replace(phase, rounds=min(phase.rounds, most)) for phase in schedule.phases)
        schedule = replace(schedule, phases=cut)
    seed = experiment.seeds.of("partition")
    return hold_out_samples(schedule, labels, lambda after: stream(seed, "convergence", after))


def _members(labels: Indices, task: Task) -> Indices:
    return np.flatnonzero((labels >= task.offset) & (labels < task.seen))


def _stress(experiment: Experiment, phases: tuple[Phase, ...], labels: Indices) -> tuple[frozenset[int], Indices]:
    """Draws the affected clients; returns their ids and the labels on which all clients really train."""
    stressor, seed = experiment.stressor, experiment.seeds.of("partition")
    affected = frozenset(stressor.affected(experiment.protocol.clients, stream(seed, "stress")))
    stressed = labels.copy()
    for phase in phases:
        for client in sorted(affected):
            own = phase.clients[client]
            random = stream(seed, "stress-labels", phase.task.index, client)
            stressed[own] = stressor.labels(labels[own], phase.task, random)
    return affected, stressed


def _model(experiment: Experiment, sizes: tuple[int, ...], names: tuple[str, ...], device: torch.device) -> FlatModel:
    """Builds the network and lets the method prepare or decline it; `names` are those of the classes, in order."""
    backbone, protocol, classes = experiment.backbone, experiment.protocol, len(names)
    facts = {**backbone.facts(), "params": backbone.params.model_dump(mode="json")}
    request = Request(experiment.dataset.modality, classes, sizes, protocol.clients, protocol, facts, names)
    seed_torch(experiment.seeds.of("train"), "init")
    network = Network(backbone.build(), classes)
    backbone.adapt(network.extractor)
    body = network.extractor.body
    built = structure(body)
    answer = experiment.aggregator.prepare(network, request)
    if isinstance(answer, No):
        raise Unsupported(answer.reason)
    check_adapters(network, backbone)
    model = FlatModel(network, device)
    if device.type == "cpu":
        own = {"backbone": facts, "portable": experiment.runtime.portable}
        initial = model.vector.clone()
        named = model.named(initial)
        model.passes = StartingPasses(network, body, built, initial=initial, named=named, facts=own)
    return model


def _test_positions(
    labels: Indices, tasks: TaskStream, class_names: Sequence[str], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Returns the positions of each task's test samples; raises DataError if a task has none."""
    found = [_members(labels, task) for task in tasks.tasks]
    if empty := [str(number) for number, own in enumerate(found, start=1) if not len(own)]:
        classes = ", ".join(map(repr, tasks.names(class_names)[int(empty[0]) - 1][:3]))
        raise DataError(
            f"there are no test samples of task {', '.join(empty)}: nothing could be measured",
            hint=f"give test samples of its classes ({classes}), or leave the classes out",
        )
    return tuple(torch.from_numpy(own).to(device) for own in found)
