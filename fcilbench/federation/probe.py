"""A dry run of an experiment's plugins on a few synthetic samples: do they fit together at all?"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcilbench.api.backbone import ImageInput, TextBackbone
from fcilbench.api.dataset import Corpus, Dataset, Samples
from fcilbench.federation.experiment import Experiment, Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.spec.protocol import Partition

_CLASSES, _TRAIN, _TEST = 4, 3, 1


class _Noise(Dataset):
    """Four classes of noise at the size that a backbone wants."""

    classes, default_tasks = _CLASSES, 2
    train_samples, test_samples = _CLASSES * _TRAIN, _CLASSES * _TEST

    def __init__(self, spec: ImageInput) -> None:
        super().__init__()
        self._shape = (spec.size, spec.size, spec.channels)

    def load(self, root: Path) -> Corpus:
        random = np.random.default_rng(0)
        splits = []
        for count in (_TRAIN, _TEST):
            labels = np.repeat(np.arange(_CLASSES), count)
            splits.append(Samples(self._draw(len(labels), random), labels))
        return Corpus(splits[0], splits[1], tuple("abcd"))

    def _draw(self, count: int, random: np.random.Generator) -> npt.NDArray[Any]:
        return random.integers(0, 256, (count, *self._shape), dtype=np.uint8)


class _Words(_Noise):
    """Four classes of texts, each of one to five words."""

    modality = "text"

    def __init__(self) -> None:
        super().__init__(ImageInput(size=1))

    def _draw(self, count: int, random: np.random.Generator) -> npt.NDArray[Any]:
        words = np.array(["a", "good", "small", "test", "text"])
        texts = np.empty(count, dtype=object)
        texts[:] = [" ".join(random.choice(words, 1 + i % 5)) for i in range(count)]
        return texts


def probe(experiment: Experiment) -> None:
    """Runs two tasks of one round on noise: every hook is called, and one batch has a single sample.

    There are two clients, or as many as the stressor needs to misbehave.

    Raises:
        Exception: Whatever a plugin raises. A method that declines the cell is no error.
    """
    affected = experiment.stressor.affected(experiment.protocol.clients, np.random.default_rng(0))
    short = experiment.protocol.model_copy(
        update={"clients": max(2, len(affected)), "rounds": 1, "local_epochs": 1, "batch_size": 2, "participation": 1.0}
    )
    text = isinstance(experiment.backbone, TextBackbone)
    tiny = replace(
        experiment,
        dataset=_Words() if text else _Noise(experiment.backbone.image_input()),
        protocol=short,
        partition=Partition(kind="iid", min_samples=0),
        tasks=None,
        declared_fingerprint="",
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_experiment(tiny, Path(folder))
        except Unsupported:
            return
