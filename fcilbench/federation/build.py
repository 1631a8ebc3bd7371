"""From a declared experiment to a federation: data on the device, clients' samples, the model, the server."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fcilbench.api.aggregator import No, Request
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.schedule import Indices, Phase, Schedule
from fcilbench.api.task import Task
from fcilbench.data.open import open_dataset
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.network import Network
from fcilbench.engine.training import Trainer
from fcilbench.errors import DataError, PrerequisiteError
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
    request = Request(experiment.dataset.modality, classes, sizes, experiment.protocol)
    answer = _supports(experiment, request)
    if isinstance(answer, No):
        raise Unsupported(answer.reason)
    stream_ = TaskStream.draw(classes, sizes, experiment.seeds.of("order"))
    labels = stream_.internal(corpus.train.labels)
    test_labels = stream_.internal(corpus.test.labels)
    phases = _phases(experiment, stream_.tasks, labels)
    affected, labels = _stress(experiment, phases, labels)
    model = _model(experiment, classes, device)
    backbone, none, nhwc = experiment.backbone, Augmentation(), model.network.extractor.channels_last
    train = place(backbone, Samples(corpus.train.inputs, labels), experiment.dataset.augmentation, device, nhwc)
    outside = None if corpus.outside is None else Samples(corpus.outside, np.full(len(corpus.outside), -1))
    initial, runtime = model.vector.clone(), experiment.runtime
    return Federation(
        experiment=experiment,
        stream=stream_,
        schedule=experiment.aggregator.build_schedule(Schedule(phases)),
        train=train,
        test=place(backbone, Samples(corpus.test.inputs, test_labels), none, device, nhwc),
        outside=None if outside is None else place(backbone, outside, none, device, nhwc),
        test_index=tuple(_positions(test_labels, task, device) for task in stream_.tasks),
        model=model,
        trainer=Trainer(model, train, experiment.protocol, runtime.capture == "auto"),
        server=FederationServer(
            model.vector, model.counters, model.layout, stream_.tasks, experiment.seeds.of("train")
        ),
        features=FeatureMemory(model, initial, runtime.eval_batch_size),
        initial=initial,
        affected=affected,
        class_names=corpus.class_names,
        fingerprint=fingerprint,
    )


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise PrerequisiteError("no CUDA device is available", hint="run with --gpus none to use the CPU")
    return torch.device(name)


def _supports(experiment: Experiment, request: Request) -> object:
    if experiment.backbone.modality != experiment.dataset.modality:
        return No(f"a {experiment.backbone.modality} backbone does not read {experiment.dataset.modality} data")
    return experiment.aggregator.supports(request)


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


def _model(experiment: Experiment, classes: int, device: torch.device) -> FlatModel:
    seed_torch(experiment.seeds.of("train"), "init")
    network = Network(experiment.backbone.build(), classes)
    experiment.aggregator.prepare(network)
    return FlatModel(network, device)


def _positions(labels: Indices, task: Task, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.flatnonzero((labels >= task.offset) & (labels < task.seen))).to(device)
