"""The bench on which laws are checked: scikit-learn's digits, a small network, seconds on a CPU."""

from __future__ import annotations

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

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput
from fcilbench.api.dataset import Corpus
from fcilbench.api.schedule import Indices, Phase, Schedule
from fcilbench.api.stressor import Stressor
from fcilbench.data.open import open_dataset
from fcilbench.federation.experiment import Experiment
from fcilbench.federation.tasks import TaskStream
from fcilbench.plugins.datasets.digits import Digits
from fcilbench.spec.protocol import Partition, Protocol, Runtime, Seeds

UNEVEN = (3, 1, 2, 4)
"""Classes of each task on the bench: uneven, with a task of one class."""

Edit = Callable[[Phase], Phase]


class BenchNet(Backbone):
    """A convolution with BatchNorm (buffers and a counter) and a linear layer: 16 features of 8x8 images."""

    def build(self) -> FeatureExtractor:
        """Builds the network with random weights."""
        layers = (
            nn.Conv2d(1, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36, 16),
            nn.ReLU(),
        )
        return FeatureExtractor(nn.Sequential(*layers), 16)

    def image_input(self) -> ImageInput:
        """Takes digits as they are."""
        return ImageInput(size=8, channels=1, mean=(0.5,), std=(0.5,))


class BenchDigits(Digits):
    """A few digits of each class, read once a process."""

    train_samples, test_samples, fingerprint = 80, 50, ""

    def load(self, root: Path) -> Corpus:
        """Returns 8 training and 5 test images of each class."""
        return _digits()


@cache
def _digits() -> Corpus:
    return open_dataset(Digits(Digits.Params(train_per_class=8, test_per_class=5)), Path())[0]


class Poison(Stressor):
    """The given clients send NaN instead of their update."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__()
        self._clients = tuple(clients)

    def affected(self, clients: int, random: np.random.Generator) -> Sequence[int]:
        """Returns the given clients."""
        return self._clients

    def upload(self, message: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Returns NaN wherever a number may be one."""
        nan = float("nan")
        return {k: torch.full_like(v, nan) if v.is_floating_point() else v for k, v in message.items()}


@dataclass(frozen=True)
class Bench:
    """Where aggregators are tried.

    Attributes:
        backbone: Makes the network to train.
    """

    backbone: Callable[[], Backbone] = BenchNet

    def experiment(self, aggregator: Aggregator, edit: Edit | None = None, **changes: Any) -> Experiment:
        """Declares a small experiment.

        Args:
            aggregator: The method; its `build_schedule` is wrapped if there is an `edit`.
            edit: Changes each phase before the method arranges the schedule.
            **changes: Fields of the protocol or of the experiment that differ.
        """
        if edit is not None:
            own, change = aggregator.build_schedule, edit

            def build_schedule(schedule: Schedule) -> Schedule:
                return own(replace(schedule, phases=tuple(change(phase) for phase in schedule.phases)))

            aggregator.build_schedule = build_schedule  # type: ignore[method-assign]
        protocol: dict[str, Any] = {"clients": 3, "rounds": 2, "local_epochs": 1, "batch_size": 8, "lr": 1e-2}
        protocol |= {name: changes.pop(name) for name in list(changes) if name in Protocol.model_fields}
        settings: dict[str, Any] = {
            "dataset": BenchDigits(),
            "backbone": self.backbone(),
            "stressor": Stressor(),
            "data_root": Path(),
            "partition": Partition(kind="dirichlet", value=0.5),
            "tasks": UNEVEN,
            "seeds": Seeds(),
            "runtime": Runtime(eval_batch_size=64, checkpoint="never"),
        }
        return Experiment(aggregator=aggregator, protocol=Protocol(**protocol), **(settings | changes))


def spread(shares: Sequence[float]) -> Edit:
    """Returns an edit that gives clients these shares of a task's samples, in the order of the samples."""

    def edit(phase: Phase) -> Phase:
        pool = np.sort(np.concatenate(phase.clients))
        bounds = [round(float(total) * len(pool)) for total in np.cumsum([0.0, *shares])]
        held = tuple(pool[a:b] for a, b in pairwise(bounds))
        return replace(phase, clients=held)

    return edit


def one_class_first(tasks: tuple[int, ...] = UNEVEN) -> Edit:
    """Returns an edit that gives client 0 all samples of a task's first class, client 1 one sample, 2 the rest."""
    labels = internal_labels(tasks)

    def edit(phase: Phase) -> Phase:
        pool = np.sort(np.concatenate(phase.clients))
        first = labels[pool] == phase.task.offset
        one, rest = pool[first], pool[~first]
        if len(rest) == 0:  # a task of one class
            one, rest = pool[:4], pool[4:]
        return replace(phase, clients=(one, rest[:1], rest[1:]))

    return edit


def internal_labels(tasks: tuple[int, ...] = UNEVEN) -> Indices:
    """Returns the internal labels of the bench's training samples."""
    order = TaskStream.draw(sum(tasks), tasks, Seeds().of("order"))
    return order.internal(_digits().train.labels)


@contextmanager
def quiet_torch() -> Iterator[None]:
    """One torch thread, and torch's global generator put back afterwards."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
