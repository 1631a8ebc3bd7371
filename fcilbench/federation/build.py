"""From a declared experiment to a federation: data on the device, clients' samples, the model, the server."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fcilbench.api.aggregator import No, Request
from fcilbench.api.backbone import TextBackbone
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.schedule import Indices, Phase, Schedule
from fcilbench.api.task import Task
from fcilbench.data.open import open_dataset
from fcilbench.engine.data import DeviceData
from fcilbench.engine.memo import memo_table
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.trainer import Trainer
from fcilbench.errors import DataError, PrerequisiteError
from fcilbench.federation.channel import Channel
from fcilbench.federation.experiment import Experiment, Federation, Unsupported
from fcilbench.federation.features import FeatureMemory
from fcilbench.federation.partition import partition
from fcilbench.federation.placing import place
from fcilbench.federation.server import FederationServer
from fcilbench.federation.streams import seed_torch, stream
from fcilbench.federation.tasks import TaskStream, equal_tasks


def build(experiment: Experiment, decoding: Callable[[int, int], None] | None = None) -> Federation:
    """Loads data and weights and lays out the federation.

    Args:
        experiment: What to lay out.
        decoding: Called with the number of samples done and of all samples while the data set's cache is made.

    Raises:
        Unsupported: If the method does not run on this cell.
        PrerequisiteError: If data, weights or the device are missing.
    """
    device = _device(experiment.device)
    corpus, fingerprint = open_dataset(experiment.dataset, experiment.data_root, decoding)
    if experiment.declared_fingerprint not in ("", fingerprint):
        raise DataError(f"the data has digest {fingerprint}, the plan was made for {experiment.declared_fingerprint}")
    classes = len(corpus.class_names)
    sizes = equal_tasks(classes, experiment.dataset.default_tasks if experiment.tasks is None else experiment.tasks)
    backbone, none = experiment.backbone, Augmentation()
    if backbone.modality != experiment.dataset.modality:
        raise Unsupported(f"a {backbone.modality} backbone does not read {experiment.dataset.modality} data")
    stream_ = TaskStream.draw(classes, sizes, experiment.seeds.of("order"))
    labels = stream_.internal(corpus.train.labels)
    test_labels = stream_.internal(corpus.test.labels)
    phases = _phases(experiment, stream_.tasks, labels)
    affected, labels = _stress(experiment, phases, labels)
    model = _model(experiment, classes, sizes, device)
    nhwc = model.network.extractor.channels_last
    augmentation = experiment.dataset.augmentation
    train = place(backbone, Samples(corpus.train.inputs, labels), augmentation, device, nhwc)
    test = place(backbone, Samples(corpus.test.inputs, test_labels), none, device, nhwc)
    outside = None
    if corpus.outside is not None:
        unknown = Samples(corpus.outside, np.full(len(corpus.outside), -1))
        outside = place(backbone, unknown, none, device, nhwc)
    for data in (train, test, outside):
        if data is not None:
            remember(experiment, model, data)
    schedule = experiment.aggregator.build_schedule(Schedule(phases))
    initial, runtime = model.vector.clone(), experiment.runtime
    return Federation(
        experiment=experiment,
        stream=stream_,
        schedule=schedule,
        train=train,
        test=test,
        outside=outside,
        test_index=tuple(_positions(test_labels, task, device) for task in stream_.tasks),
        model=model,
        trainer=Trainer(model, train, experiment.protocol, runtime.capture == "auto", experiment.aggregator.rates()),
        server=FederationServer(
            model.vector,
            model.counters,
            model.layout,
            stream_.tasks,
            protocol=experiment.protocol,
            seed=experiment.seeds.of("train"),
            model=model,
            image_input=None if isinstance(backbone, TextBackbone) else backbone.image_input(),
        ),
        features=FeatureMemory(model, initial, runtime.eval_batch_size),
        initial=initial,
        channel=Channel(model.layout, experiment.stressor, affected, schedule.federated),
        class_names=corpus.class_names,
        fingerprint=fingerprint,
    )


def remember(experiment: Experiment, model: FlatModel, data: DeviceData) -> None:
    """Asks the method's query about all samples of a split; the initial network must be loaded."""
    size, query = experiment.runtime.eval_batch_size, experiment.aggregator.query
    data.memo = memo_table(model, data, query, size, experiment.protocol.precision)


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PrerequisiteError("no CUDA device is available", hint="run with --gpus none to use the CPU")
    return torch.device(name)


def _phases(experiment: Experiment, tasks: tuple[Task, ...], labels: Indices) -> tuple[Phase, ...]:
    """Partitions each task over the clients, by the partition seed and the task alone."""
    protocol = experiment.protocol
    phases = []
    for task in tasks:
        members = np.flatnonzero((labels >= task.offset) & (labels < task.seen))
        random = stream(experiment.seeds.of("partition"), "partition", task.index)
        parts = partition(labels[members], protocol.clients, experiment.partition, random)
        held = tuple(members[part] for part in parts)
        phases.append(Phase(task, held, protocol.rounds, protocol.local_epochs, protocol.batch_size, after=task.index))
    return tuple(phases)


def _stress(experiment: Experiment, phases: tuple[Phase, ...], labels: Indices) -> tuple[frozenset[int], Indices]:
    """Draws the affected clients and gives them the labels that they really train on."""
    stressor, seed = experiment.stressor, experiment.seeds.of("partition")
    affected = frozenset(stressor.affected(experiment.protocol.clients, stream(seed, "stress")))
    stressed = labels.copy()
    for phase in phases:
        for client in sorted(affected):
            own = phase.clients[client]
            random = stream(seed, "stress-labels", phase.task.index, client)
            stressed[own] = stressor.labels(labels[own], phase.task, random)
    return affected, stressed


def _model(experiment: Experiment, classes: int, sizes: tuple[int, ...], device: torch.device) -> FlatModel:
    backbone, protocol = experiment.backbone, experiment.protocol
    facts = {**backbone.facts(), "params": backbone.params.model_dump(mode="json")}
    request = Request(backbone.modality, classes, sizes, protocol.clients, protocol, facts)
    seed_torch(experiment.seeds.of("train"), "init")
    network = Network(backbone.build(), classes)
    answer = experiment.aggregator.prepare(network, request)
    if isinstance(answer, No):
        raise Unsupported(answer.reason)
    return FlatModel(network, device)


def _positions(labels: Indices, task: Task, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.flatnonzero((labels >= task.offset) & (labels < task.seen))).to(device)
