"""A trial of an experiment on synthetic samples: whether its plugins work together, before anything is trained."""

from __future__ import annotations

import tempfile
from contextlib import suppress
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

_WORDS = ("a", "good", "small", "test", "text")


class _Noise(Dataset):
    """Four classes of noise images at the size that a backbone wants or, without one, of texts of one to five words."""

    classes, default_tasks, train_samples, test_samples = 4, 2, 12, 4

    def __init__(self, spec: ImageInput | None) -> None:
        super().__init__()
        self.modality = "text" if spec is None else "vision"
        self._spec, self._random = spec, np.random.default_rng(0)

    def load(self, root: Path) -> Corpus:
        train, test = (Samples(self._inputs(4 * count), np.repeat(np.arange(4), count)) for count in (3, 1))
        return Corpus(train, test, tuple("abcd"))

    def _inputs(self, count: int) -> npt.NDArray[Any]:
        if self._spec is None:
            return np.array([" ".join(self._random.choice(_WORDS, 1 + i % 5)) for i in range(count)], dtype=object)
        size = self._spec.size
        return self._random.integers(0, 256, (count, size, size, self._spec.channels), dtype=np.uint8)


def probe(experiment: Experiment) -> None:
    """Runs two tasks of one round on noise: every hook is called, and one batch has a single sample.

    There are two clients, or as many as the stressor needs to misbehave.

    Raises:
        Exception: Whatever a plugin raises. A method that declines the cell is no error.
    """
    affected = experiment.stressor.affected(experiment.protocol.clients, np.random.default_rng(0))
    clients = max(2, len(affected))
    short = {"clients": clients, "rounds": 1, "local_epochs": 1, "batch_size": 2, "participation": 1.0}
    backbone = experiment.backbone
    tiny = replace(
        experiment,
        dataset=_Noise(None if isinstance(backbone, TextBackbone) else backbone.image_input()),
        protocol=experiment.protocol.model_copy(update=short),
        partition=Partition(kind="iid", min_samples=0),
        tasks=None,
        declared_fingerprint="",
        most_rounds=1,
    )
    with tempfile.TemporaryDirectory() as folder, suppress(Unsupported):
        run_experiment(tiny, Path(folder))
