"""A small real federation: scikit-learn's digits and a two-layer network, seconds on a CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput, TextBackbone, TokenIds
from fcilbench.engine.meters import Stopwatch
from fcilbench.federation.experiment import Experiment, RoundContext
from fcilbench.federation.round import run_round, update_rows
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.datasets.digits import Digits
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Partition, Protocol, Seeds


class Mlp(Backbone):
    """Flatten, one hidden layer."""

    def build(self):
        return FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), 16)

    def image_input(self):
        return ImageInput(size=8, channels=1, mean=(0.5,), std=(0.5,))


class NormNet(Mlp):
    """A convolution with BatchNorm, to have buffers and a counter."""

    def build(self):
        body = (nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 16), nn.ReLU())
        return FeatureExtractor(nn.Sequential(*body), 16)


class Bag(TextBackbone):
    """Mean of word embeddings; a word's token is the sum of its letters."""

    def build(self):
        class Mean(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(64, 8)

            def forward(self, ids):
                mask = (ids != 0).float()[:, :, None]
                return (self.embedding(ids.long()) * mask).sum(1) / mask.sum(1).clamp(min=1)

        return FeatureExtractor(Mean(), 8)

    def encode(self, texts):
        rows = [[1 + sum(map(ord, word)) % 63 for word in text.split()] for text in texts]
        lengths = np.array([max(1, len(row)) for row in rows])
        ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int32)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = row
        return TokenIds(ids, lengths, 0)


@pytest.fixture
def make_experiment(tmp_path):
    """Returns a function that declares a small experiment; keywords override the protocol's or the experiment's."""

    def make(aggregator=None, **changes):
        protocol = {"clients": 3, "rounds": 2, "local_epochs": 1, "batch_size": 16, "lr": 1e-2}
        protocol |= {k: changes.pop(k) for k in list(changes) if k in Protocol.model_fields}
        settings = {
            "dataset": Digits(Digits.Params(train_per_class=20, test_per_class=10)),
            "backbone": Mlp(),
            "stressor": NoStress(),
            "data_root": Path(tmp_path),
            "partition": Partition(kind="dirichlet", value=0.5),
            "tasks": 5,
            "seeds": Seeds(),
        }
        settings |= changes
        return Experiment(aggregator=aggregator or FedAvg(), protocol=Protocol(**protocol), **settings)

    return make


@pytest.fixture
def one_round():
    """Returns `one_round(federation, number)`: plays a round of the first task; returns its updates `[N, D]`.

    What `run_round` returned last is `one_round.result`.
    """

    def play(federation, number=0):
        rows = update_rows(federation)
        turn = RoundContext(federation.schedule.phases[0], number)
        play.result = run_round(federation, turn, rows, Stopwatch(torch.device("cpu")))
        return rows

    return play


@pytest.fixture
def norm_backbone():
    return NormNet()


@pytest.fixture
def text_backbone():
    return Bag()
