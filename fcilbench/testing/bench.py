"""Benches: small federations on scikit-learn's digits on which the kit tries aggregators, in milliseconds on a CPU."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fcilbench.api import (
    Aggregator,
    Backbone,
    Corpus,
    FeatureExtractor,
    ImageInput,
    Partition,
    Phase,
    Protocol,
    Schedule,
    Stressor,
    Transformer,
)
from fcilbench.data.open import open_dataset
from fcilbench.federation.experiment import Experiment
from fcilbench.plugins.datasets.digits import Digits
from fcilbench.spec.protocol import Runtime, Seeds

UNEVEN = (3, 1, 2, 4)
"""Classes of each task on a bench: unequal, with a task of one class."""

Edit = Callable[[Phase], Phase]


class _Scale(nn.Module):
    """Multiplies by a constant that is a persistent float buffer."""

    factor: torch.Tensor

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factor


class ConvNet(Backbone):
    """A convolution with BatchNorm, a constant float buffer and a linear layer: 16 features of 8x8 images."""

    def build(self) -> FeatureExtractor:
        """Builds the network with random weights."""
        layers = (nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), _Scale(2.0))
        return FeatureExtractor(nn.Sequential(*layers, nn.Linear(36, 16), nn.ReLU()), 16)

    def image_input(self) -> ImageInput:
        """Returns an input size of 8x8, so that digits are not resized."""
        return ImageInput(size=8, channels=1, mean=(0.5,), std=(0.5,))


class SmallViT(ConvNet):
    """A vision transformer of timm with two blocks; its patch embedding and its first block are frozen."""

    def build(self) -> FeatureExtractor:
        """Builds the network with random weights."""
        from timm.models.vision_transformer import VisionTransformer

        size: dict[str, Any] = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2}
        body = VisionTransformer(**size, num_heads=2, mlp_ratio=2.0, num_classes=0)
        body.patch_embed.requires_grad_(False)
        body.blocks[0].requires_grad_(False)
        extractor = FeatureExtractor(body, 16)
        extractor.transformer = Transformer(tokens=5, width=16, depth=2, heads=2)
        return extractor


class FewDigits(Digits):
    """Eight training and five test images of each digit, read once a process."""

    train_samples, test_samples, fingerprint = 80, 50, ""

    def load(self, root: Path) -> Corpus:
        """Returns the kept samples."""
        return _digits()


@cache
def _digits() -> Corpus:
    return open_dataset(Digits(Digits.Params(train_per_class=8, test_per_class=5)), Path())[0]


class Faulty(Stressor):
    """The given clients send NaN and nothing by turns."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__()
        self._clients, self._calls = tuple(clients), 0

    def affected(self, clients: int, random: np.random.Generator) -> Sequence[int]:
        """Returns the given clients."""
        return self._clients

    def upload(self, message: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor] | None:
        """Returns the message with NaN in each tensor of floats, or no answer."""
        self._calls += 1
        if self._calls % 2 == 0:
            return None
        return {k: torch.full_like(v, float("nan")) if v.is_floating_point() else v for k, v in message.items()}


class Opposite(Stressor):
    """All clients send the opposite of every floating-point number that they computed."""

    def affected(self, clients: int, random: np.random.Generator) -> Sequence[int]:
        """Returns all clients."""
        return range(clients)

    def upload(self, message: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor] | None:
        """Returns the message with each tensor of floats negated."""
        return {name: -value if value.is_floating_point() else value for name, value in message.items()}


@dataclass(frozen=True)
class Bench:
    """A small federation on one network, in which aggregators are tried; failures name it."""

    name: str
    backbone: Callable[[], Backbone]

    def experiment(self, aggregator: Aggregator, edit: Edit | None = None, **changes: Any) -> Experiment:
        """Returns a small experiment; `edit` changes each phase before the method builds its schedule.

        `changes` are fields of the protocol or of the experiment.
        """
        if edit is not None:
            own, change = aggregator.build_schedule, edit

            def build_schedule(schedule: Schedule) -> Schedule:
                return own(replace(schedule, phases=tuple(change(phase) for phase in schedule.phases)))

            aggregator.build_schedule = build_schedule  # type: ignore[method-assign]
        protocol: dict[str, Any] = {"clients": 3, "rounds": 2, "local_epochs": 1, "batch_size": 8, "lr": 1e-2}
        protocol |= {name: changes.pop(name) for name in list(changes) if name in Protocol.model_fields}
        settings: dict[str, Any] = {
            "dataset": FewDigits(),
            "backbone": self.backbone(),
            "stressor": Stressor(),
            "data_root": Path(),
            "partition": Partition(kind="dirichlet", value=0.5),
            "tasks": UNEVEN,
            "seeds": Seeds(),
            "runtime": Runtime(eval_batch_size=64, checkpoint="never"),
        }
        return Experiment(aggregator=aggregator, protocol=Protocol(**protocol), **(settings | changes))


BENCHES = (Bench("convolution with BatchNorm", ConvNet), Bench("vision transformer", SmallViT))
"""Every check of an aggregator runs on each of these."""


def spread(shares: Sequence[float]) -> Edit:
    """Returns an edit that gives clients these shares of a task's samples, in the order of the samples."""

    def edit(phase: Phase) -> Phase:
        pool = np.sort(np.concatenate(phase.clients))
        bounds = [round(float(total) * len(pool)) for total in np.cumsum([0.0, *shares])]
        return replace(phase, clients=tuple(pool[start:stop] for start, stop in pairwise(bounds)))

    return edit


def one_class_first(phase: Phase) -> Phase:
    """Gives client 0 all samples of one class of a task, client 1 one sample, client 2 the rest."""
    pool = np.sort(np.concatenate(phase.clients))
    labels = _digits().train.labels[pool]
    first = labels == labels[0]
    one, rest = (pool[:4], pool[4:]) if first.all() else (pool[first], pool[~first])  # a task may have one class
    return replace(phase, clients=(one, rest[:1], rest[1:]))


def no_samples_in_task(index: int) -> Edit:
    """Returns an edit that leaves all clients without samples in one task."""
    return lambda phase: spread([0.0] * len(phase.clients))(phase) if phase.task.index == index else phase


def shake_generators(seed: int) -> None:
    """Seeds every global generator that a plugin could draw from."""
    torch.default_generator.manual_seed(seed)  # the runs are on the CPU, and seeding all devices is slow
    np.random.seed(seed)
    random.seed(seed)


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Uses one torch thread, and restores the number of threads and torch's global generator afterwards."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
