"""A trial of an experiment on synthetic samples: whether its plugins work together, before anything is trained."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcilbench.api.backbone import Backbone
from fcilbench.api.dataset import Corpus, Dataset, Samples
from fcilbench.errors import PrerequisiteError
from fcilbench.federation.experiment import Experiment, Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.spec.protocol import Partition

_WORDS = ("a", "good", "small", "test", "text")


class _Noise(Dataset):
    """Four classes of noise of another data set's kind: short texts, or images and arrays of a backbone's shape.

    Images have the channels of the data set.
    """

    classes, default_tasks, train_samples, test_samples = 4, 2, 12, 4

    def __init__(self, like: Dataset, backbone: Backbone, root: Path) -> None:
        super().__init__()
        # A backbone that does not read the data set is tried on what it reads: the cell itself declines.
        self.modality = like.modality if like.modality in backbone.reads else backbone.reads[0]
        self.transform, self._random = like.transform, np.random.default_rng(0)
        self._wanted = () if self.modality == "text" else backbone.input_shape()
        self.shape = self._wanted if self.modality == "array" else ()
        if self.modality == like.modality == "vision":
            channels, *size = self._wanted
            self._wanted = (_channels(like, root, channels), *size)

    def load(self, root: Path) -> Corpus:
        train, test = (Samples(self._inputs(4 * count), np.repeat(np.arange(4), count)) for count in (3, 1))
        return Corpus(train, test, tuple("abcd"))

    def _inputs(self, count: int) -> npt.NDArray[Any]:
        if self.modality == "text":
            return np.array([" ".join(self._random.choice(_WORDS, 1 + i % 5)) for i in range(count)], dtype=object)
        if self.modality == "array":
            return self._random.standard_normal((count, *self._wanted), dtype=np.float32)
        channels, height, width = self._wanted
        return self._random.integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def _channels(dataset: Dataset, root: Path, wanted: int) -> int:
    """Returns the channels of a data set's images; those that a backbone wants if the data are not on this machine.

    A backbone for three reads colours and grey, which is what nearly all images are: for it the data are not read.
    """
    if wanted == 3:
        return wanted
    try:
        return int(dataset.load(root).train.inputs.shape[-1])
    except PrerequisiteError:
        return wanted


def probe(experiment: Experiment) -> None:
    """Runs two tasks of one round on noise: every hook is called, and one batch has a single sample.

    There are two clients, or as many as the stressor needs to misbehave.

    Raises:
        Exception: Whatever a plugin raises. A method that declines the cell is no error.
    """
    affected = experiment.stressor.affected(experiment.protocol.clients, np.random.default_rng(0))
    clients = max(2, len(affected))
    short = {"clients": clients, "rounds": 1, "local_epochs": 1, "batch_size": 2, "participation": 1.0}
    tiny = replace(
        experiment,
        dataset=_Noise(experiment.dataset, experiment.backbone, experiment.data_root),
        protocol=experiment.protocol.model_copy(update=short),
        partition=Partition(kind="iid", min_samples=0),
        tasks=None,
        declared_fingerprint="",
        most_rounds=1,
    )
    with tempfile.TemporaryDirectory() as folder, suppress(Unsupported):
        run_experiment(tiny, Path(folder))
