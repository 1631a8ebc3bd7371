"""Features of training samples under a backbone that nobody trains: computed once, where augmentation allows.

A method that freezes the backbone (`prepare`) and trains what comes after it would run the whole backbone in each step,
over the same samples, for the same features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fcilbench.api.client import Context, Net
from fcilbench.api.message import Layout
from fcilbench.engine.data import DeviceData
from fcilbench.engine.difference import REORDERED, relative_difference
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.precision import autocast
from fcilbench.spec.protocol import Protocol

_BATCH = 128
"""Samples per forward pass."""


@dataclass(frozen=True)
class Remembered:
    """A network that knows the features of one batch; implements `fcilbench.api.client.Net`.

    Attributes:
        net: The network.
        inputs: The batch's inputs: exactly this tensor is known. A loss that changes them (mixes, crops, perturbs) gets
            the features of what it made.
        known: Their features `[B, F]`.
    """

    net: Net
    inputs: torch.Tensor
    known: torch.Tensor

    @property
    def parameters(self) -> torch.Tensor:
        """Trainable parameters, flat `[P]`."""
        return self.net.parameters

    @property
    def layout(self) -> Layout:
        """Slices of the state vector."""
        return self.net.layout

    def piece(self, name: str) -> torch.Tensor:
        """Returns one tensor of the state vector."""
        return self.net.piece(name)

    def outputs(self, inputs: torch.Tensor, context: Context | None = None) -> Mapping[str, torch.Tensor]:
        """Runs the whole network: what it returns beside features is not known."""
        return self.net.outputs(inputs, context)

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the known features, or runs the backbone."""
        return self.known if inputs is self.inputs else self.net.features(inputs)

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Maps features `[B, F]` to logits `[B, C]`."""
        return self.net.head(features)

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to logits `[B, C]`."""
        return self.head(self.features(inputs))

    def under(self, vector: torch.Tensor) -> Net:
        """Returns the network with another state vector, in which a frozen backbone has no part."""
        return Remembered(self.net.under(vector), self.inputs, self.known)


class FrozenFeatures:
    """Features of all training samples, if they are the same in every step.

    They are where no parameter and no buffer of the backbone is in the state vector, training inputs are test inputs,
    and the backbone in training mode gives a sample the same features in any batch (no dropout, no batch statistics).
    The last is tried out on real samples.

    Args:
        model: The resident model.
        data: Training samples.
        protocol: Precision and augmentation.
    """

    def __init__(self, model: FlatModel, data: DeviceData, protocol: Protocol) -> None:
        self._model, self._data, self._protocol = model, data, protocol
        parts = model.layout
        alone = parts.backbone.start == parts.backbone.stop and parts.buffers.start == parts.buffers.stop
        varied = protocol.augment and data.augments
        self._possible = alone and not len(model.counters) and not varied and len(data) > 0
        self._table: torch.Tensor | None = None

    def of(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Returns the features of the samples at `rows` `[...]`, `[..., F]`; `None` where each step has its own.

        The first call computes all of them.
        """
        if self._possible and self._table is None:
            self._table = self._compute()
            self._possible = self._table is not None
        return None if self._table is None else self._table[rows]

    def _compute(self) -> torch.Tensor | None:
        network, size = self._model.network, _BATCH
        index = torch.arange(len(self._data), device=self._data.labels.device)
        modes = [(module, module.training) for module in network.modules()]
        try:
            with torch.no_grad(), autocast(self._protocol.precision, index.device):
                network.train()
                some, other = index[: 2 * size : 2], index[: 2 * size].flip(0)
                again = self._features(some), self._features(other).flip(0)[::2]
                network.eval()
                first = self._features(some)
                if not all(self._same(first, features) for features in again):
                    return None
                return torch.cat([self._features(rows) for rows in torch.split(index, size)])
        finally:
            for module, training in modes:
                module.training = training

    def _features(self, rows: torch.Tensor) -> torch.Tensor:
        return self._model.features(self._data.plain(rows))

    def _same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return relative_difference(other, one) < REORDERED[self._protocol.precision]
