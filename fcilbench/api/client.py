"""What a method sees on a client: its batches, the network, the broadcasts, and nothing of other clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import nn

from fcilbench.api.backbone import ImageInput
from fcilbench.api.memory import Memory
from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.spec import protocol as _protocol

Context = Mapping[str, torch.Tensor]
"""What a loss may read beside its batch.

Tensors by name: the method's broadcasts, the tensors of the client's own state as `state/<name>`, and as `received` the
global vector `[D]` that the client has just received, which costs nothing. In evaluation `memo` holds the samples'
memos.
"""

State = dict[str, Any]
"""A method's persistent state, of the server or of one client.

Tensors, numbers, bools, strings, `None`, and lists and dicts of these: checkpoints keep it, and it is measured.
"""

Part = Literal["logits", "features", "head", "outputs"]
"""What of the network is run; `head` maps features to logits."""


class Net(ABC):
    """The network as a function of its parameters. A loss must go through it and nothing else.

    Under `precision: bf16` the backbone alone runs in bfloat16: features and logits are float32, and so are a loss's
    own products and distances.

    Attributes:
        parameters: Trainable parameters, flat float32 `[P]`, differentiable; for penalties on weights.
        vector: State vector, float32 `[D]`; its first P entries are the parameters.
        task: The task that is trained; before the first one, a task of all classes.
    """

    parameters: torch.Tensor
    vector: torch.Tensor
    layout: Layout
    task: Task

    @abstractmethod
    def run(self, inputs: torch.Tensor, part: Part, context: Context | None = None) -> Any:
        """Runs a part of the network; methods call `outputs`, `features`, `head` or `logits`."""

    @abstractmethod
    def under(self, vector: torch.Tensor) -> Net:
        """Returns the same network in eval mode with another state vector `[D]`, e.g. a teacher's."""

    def piece(self, name: str) -> torch.Tensor:
        """Returns one tensor of the state vector in its own shape; differentiable if it is a parameter.

        Raises:
            KeyError: If the state vector has no tensor of that name.
        """
        piece = self.layout.piece(name)
        vector = self.parameters if piece.span.stop <= self.layout.trainable.stop else self.vector
        return vector[piece.span].view(piece.shape)

    def outputs(self, inputs: torch.Tensor, context: Context | None = None) -> Mapping[str, torch.Tensor]:
        """Runs one forward pass and returns its named outputs; the network may read the context.

        `features` `[B, F]` is always among them; a network that `Aggregator.prepare` has changed may add others.
        """
        return cast("Mapping[str, torch.Tensor]", self.run(inputs, "outputs", context))

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to penultimate features `[B, F]`."""
        return cast("torch.Tensor", self.run(inputs, "features"))

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Maps features `[B, F]` to logits over all classes `[B, C]`."""
        return cast("torch.Tensor", self.run(features, "head"))

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to logits over all classes `[B, C]`."""
        return cast("torch.Tensor", self.run(inputs, "logits"))


@dataclass(frozen=True)
class Batch:
    """One batch on the device.

    Attributes:
        inputs: Preprocessed inputs; vision `[B, channels, size, size]`, text token ids `[B, length]`.
        labels: Internal labels int64 `[B]`; padding rows hold the label of a class of the task.
        mask: float32 `[B]`, 1 for a sample and 0 for padding.
        task: The task that is trained; its `local` maps the labels.
        memo: What `Aggregator.query` returned for these samples, `[B, ...]`; `None` without a query.
        extra: `batch_size` samples drawn from `Aggregator.replay`; `None` without replay. Their labels may be of any
            earlier task.
        memories: Samples drawn from what the client keeps (`Aggregator.client_replay`), one batch for each draw; empty
            if it keeps nothing yet. Their labels may be of any task so far.
        fields: What the client keeps with each of the samples of a memory, by name `[B, ...]`.
        slices: Of samples of `extra` and `memories`, the first class of their own task and the one after its last,
            int64 `[B, 2]`; `None` for samples of `task`.
        random: Uniform numbers in (0, 1), float32 `[B, count]`, as many as `Aggregator.random_numbers` asks for.
        step: Number of the step in the client's visit, from 0, an int64 scalar on the device; `None` outside training.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    task: Task
    memo: torch.Tensor | None = None
    extra: Batch | None = None
    protocol: _protocol.Protocol = field(default_factory=_protocol.Protocol)
    memories: tuple[Batch, ...] = ()
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)
    slices: torch.Tensor | None = None
    random: torch.Tensor | None = None
    step: torch.Tensor | None = None

    @property
    def memory(self) -> Batch | None:
        """The first of `memories`; `None` if there is none."""
        return self.memories[0] if self.memories else None

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the mean of values `[B]` over the samples, without padding; 0 for a batch of padding only."""
        return (values * self.mask).sum() / self.mask.sum().clamp(min=1.0)


FisherKind = Literal["exact", "sampled", "empirical", "label_prob"]
"""Labels of a diagonal Fisher: in expectation, drawn from the model, the true ones, the true ones weighted by p."""


@dataclass(frozen=True)
class LayerGram:
    """The Gram matrix `total` = X^T X of a layer's inputs X, float64 `[in, in]`, or its diagonal `[in]`.

    `rows` is the number of rows of X (samples or tokens), a float64 scalar.
    """

    total: torch.Tensor
    rows: torch.Tensor


class Client(Protocol):
    """A client as its hooks see it: before or after local training, in eval mode, without augmentation or gradient.

    Attributes:
        id: Registered client id, from 0.
        samples: Number of its training samples n_k in the current task.
        steps: Optimiser steps that it takes in a round of this task.
        share: Share of its work that it does: 1, or less for a client that a stressor slows.
        learning_rates: The learning rate of each of these steps under the protocol's schedule, before the factors of
            `Aggregator.rates`. Their sum is what SCAFFOLD divides by.
        state: The client's own persistent state, kept between rounds and in checkpoints, and measured. If its upload is
            not merged, state and memory are again what they were before the visit.
        memory: The samples that it keeps, of this and earlier tasks; assign another one to keep others. They must be of
            `own`, of `past`, or of what it kept already. Kept between rounds and in checkpoints, and measured.
        past: In its first visit of a task, its samples of the tasks that have ended since its last visit, from which
            it can still choose what to keep; empty in later visits.
        received: The method's broadcasts of this round; empty at the end of a task.
        received_model: The global vector `[D]` that it received last. Do not change it.
        net: The network with this client's parameters: before training and at the end of a task, the received ones.
        network: The module behind `net`, for forward and backward hooks; remove them again.
        image_input: Size and normalisation of a vision backbone's inputs, those of `batches`; `None` for text.
    """

    id: int
    samples: int
    steps: int
    share: float
    task: Task
    learning_rates: tuple[float, ...]
    protocol: _protocol.Protocol
    state: State
    past: Memory
    received: Mapping[str, torch.Tensor]
    received_model: torch.Tensor
    net: Net
    network: nn.Module
    image_input: ImageInput | None
    feature_dim: int

    @property
    def own(self) -> Memory:
        """Its samples of the current task; of a slow client, in its statistics, those that they cover."""

    @property
    def memory(self) -> Memory:
        """The samples that the client keeps."""

    @memory.setter
    def memory(self, kept: Memory) -> None:
        """Keeps other samples."""

    def batches(self, samples: Memory | None = None) -> Iterator[Batch]:
        """Iterates once over the client's own samples, or over others such as `memory`, with the test transform.

        With `samples`, a batch has their `fields` and the `slices` of their tasks.
        """

    def inputs(self, patterns: Sequence[str]) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yields the inputs of the layers whose names match, one batch of the own samples after another.

        By layer name float32 `[rows, in]`: a row for each sample or token, without padding, of an `nn.Linear`, and for
        each patch of an `nn.Conv2d` without groups. Frozen layers are included, layers that did not run are missing.
        See `matches` for the patterns.
        """

    def gradient(self, loss: Callable[[Net, Batch], torch.Tensor]) -> torch.Tensor:
        """Returns the gradient `[P]`, over the client's own samples, of a loss that gives the mean of a batch."""

    def fisher(self, kind: FisherKind, samples: int | None = None) -> torch.Tensor:
        """Returns the mean diagonal Fisher over the client's own samples at the network's parameters, `[P]`.

        Squares of per-sample gradients, softmax over the task's slice, test transform, no autocast; in the order of
        `net.parameters`, and exactly 0 for head rows of other tasks. `samples` draws a subset of that size.
        """

    def grams(self, diagonal: Callable[[str], bool]) -> dict[str, LayerGram]:
        """Returns the Grams of all trained linear layers' inputs over one pass through the client's own samples.

        They are named as in the network: the weight of a layer is the piece `<name>.weight` of the state vector, the
        factors of a LoRA layer (see `lora_layers`) are `<name>.lora_A...` and `<name>.lora_B...`.
        Of layers with `diagonal(name)` only the Gram's diagonal is summed. Padding tokens of texts are left out.
        """

    def low_precision(self) -> AbstractContextManager[object]:
        """Returns the context in which the network's passes have the protocol's precision; outside it is float32.

        Gram matrices and other sums of what the network computes stay float32 and float64.
        """

    def random(self, purpose: str) -> np.random.Generator:
        """Returns a generator keyed by (train seed, purpose, task, round, client)."""
