"""What a method sees on a client: its batches, the network, the broadcast, and nothing of other clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import nn

from fcilbench.api.task import Task


class Net(Protocol):
    """The network as a function of its parameters. A loss must go through it and nothing else."""

    @property
    def parameters(self) -> torch.Tensor:
        """Trainable parameters, flat float32 `[P]`, differentiable; for penalties on weights."""

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to penultimate features `[B, F]`."""

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Maps features `[B, F]` to logits over all classes `[B, C]`."""

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to logits over all classes `[B, C]`."""

    def under(self, vector: torch.Tensor) -> Net:
        """Returns the same network in eval mode with another state vector `[D]`, e.g. a teacher's; not trained."""


@dataclass(frozen=True)
class Batch:
    """One batch on the device.

    Attributes:
        inputs: Preprocessed inputs; vision `[B, channels, size, size]`.
        labels: Internal labels int64 `[B]`; padding rows hold the label of a class of the task.
        mask: float32 `[B]`, 1 for a sample and 0 for padding.
        task: The task that is trained; its `local` maps the labels.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    task: Task


FisherKind = Literal["exact", "sampled", "empirical", "label_prob"]
"""How labels enter a diagonal Fisher: in expectation, drawn from the model, as given, as given times p (0.7)."""


@dataclass(frozen=True)
class LayerGram:
    """What RegMean needs of a linear layer's inputs X.

    Attributes:
        total: X^T X, float64 `[in, in]`, or its diagonal `[in]`.
        rows: Number of rows of X (samples or tokens), float64 scalar.
    """

    total: torch.Tensor
    rows: torch.Tensor


class Client(Protocol):
    """A client after local training, as its statistics hook sees it (eval mode, no augmentation, no gradient).

    Attributes:
        id: Registered client id; the key of its state.
        samples: Number of its training samples n_k in the current task.
        task: The current task.
        state: The client's own persistent tensors; kept between rounds and in checkpoints.
        received: The method's broadcasts of this round, the task's included; empty at the end of a task.
    """

    id: int
    samples: int
    task: Task
    state: dict[str, torch.Tensor]
    received: Mapping[str, torch.Tensor]

    @property
    def net(self) -> Net:
        """The network with this client's parameters (task-end statistics: with the global ones)."""

    @property
    def network(self) -> nn.Module:
        """The module behind `net`, for forward and backward hooks; remove them again."""

    @property
    def feature_dim(self) -> int:
        """Number of features F."""

    def batches(self, augment: np.random.Generator | None = None, raw: bool = False) -> Iterator[Batch]:
        """Iterates once over the client's own samples with the test transform.

        Args:
            augment: Draws the training augmentation from this generator instead.
            raw: Leave out the normalisation (pixels in [0, 1]), a defect of fed-mammoth that its presets reproduce.
        """

    def fisher(self, kind: FisherKind, samples: int | None = None, raw: bool = False) -> torch.Tensor:
        """Returns the mean diagonal Fisher over the client's own samples at the network's parameters, `[P]`.

        Squares of per-sample gradients, softmax over the task's slice, test transform, no autocast; in the order of
        `net.parameters`, and exactly 0 for head rows of other tasks.

        Args:
            kind: Where the labels come from.
            samples: Size of a drawn subset; `None` takes all.
            raw: Leave out the normalisation of images (vision only).
        """

    def grams(
        self, diagonal: Callable[[str], bool], augment: np.random.Generator | None = None
    ) -> dict[str, LayerGram]:
        """Returns the Grams of all trained linear layers' inputs over one pass through the client's own samples.

        Padding tokens of texts are left out.

        Args:
            diagonal: Whether of a layer, told by its name in the network, only the diagonal is wanted.
            augment: Draws the training augmentation from this generator instead of the test transform.

        Returns:
            By layer name; its weight is the piece `<name>.weight` of the state vector.
        """

    def random(self, purpose: str) -> np.random.Generator:
        """Returns a generator keyed by (train seed, purpose, task, round, client)."""


Context = Mapping[str, torch.Tensor]
"""Broadcast tensors of the method, and the client's state under `state/<name>`."""
