"""Values of samples that are computed once: they depend on a sample's test input and on weights that nobody trains.

A method that freezes the backbone would otherwise run it in each step over the same samples for the same features, and
a method with a query network would run that network a second time in each step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fcilbench.api.client import Context, Net
from fcilbench.engine.data import DeviceData
from fcilbench.engine.model import FlatModel, NetHandle, Part, keeping_modes
from fcilbench.engine.precision import REORDERED, Precision, autocast, relative_difference
from fcilbench.spec.protocol import Protocol

_BATCH = 128
"""Samples per forward pass of a frozen backbone."""

Query = Callable[[Net, torch.Tensor], torch.Tensor | None]
"""`Aggregator.query`."""


def memo_table(
    model: FlatModel, data: DeviceData, query: Query, batch_size: int, precision: Precision
) -> torch.Tensor | None:
    """Returns the answers of a method's query for all samples, `[n, ...]`, or `None` if the method asks nothing.

    The initial network must be loaded. The query sees test inputs.
    """
    model.network.eval()
    index, answers = torch.arange(len(data), device=data.labels.device), []
    with torch.no_grad(), model.arithmetic(partial(autocast, precision, index.device)):
        for rows in torch.split(index, batch_size):
            answer = query(model, data.plain(rows))
            if answer is None:
                return None
            answers.append(answer)
    return torch.cat(answers) if answers else None


class FrozenFeatures:
    """Features of training samples under a frozen backbone, where every step would compute the same ones.

    That is so if the backbone has no trainable parameter and no buffer that is exchanged, training inputs are test
    inputs, the extractor gives features alone, and the backbone in training mode gives a sample the same features in
    any batch (no dropout, no batch statistics). The last is tried out on real samples.
    """

    def __init__(self, model: FlatModel, data: DeviceData, protocol: Protocol) -> None:
        self._model, self._data, self._precision = model, data, protocol.precision
        layout = model.layout
        alone = layout.backbone.start == layout.backbone.stop and layout.buffers.start == layout.buffers.stop
        varied = protocol.augment and data.augments
        self._possible = alone and model.network.plain and not len(model.counters) and not varied and len(data) > 0
        self._table: torch.Tensor | None = None

    def of(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Returns the features of the samples at `rows` `[B]`, `[B, F]`; `None` where each step has its own.

        The first call computes all of them.
        """
        if self._possible and self._table is None:
            self._table = self._compute()
            self._possible = self._table is not None
        return None if self._table is None else self._table[rows]

    def _compute(self) -> torch.Tensor | None:
        network = self._model.network
        index = torch.arange(len(self._data), device=self._data.labels.device)
        context = partial(autocast, self._precision, index.device)
        with torch.no_grad(), keeping_modes(network), self._model.arithmetic(context):
            network.train()
            some, other = index[: 2 * _BATCH : 2], index[: 2 * _BATCH].flip(0)
            again = self._features(some), self._features(other).flip(0)[::2]
            network.eval()
            first = self._features(some)
            if not all(relative_difference(found, first) < REORDERED[self._precision] for found in again):
                return None
            return torch.cat([self._features(rows) for rows in torch.split(index, _BATCH)])

    def _features(self, rows: torch.Tensor) -> torch.Tensor:
        return self._model.features(self._data.plain(rows))


class Remembered(NetHandle):
    """A network that knows the features of one batch.

    Args:
        net: The network.
        inputs: The batch's inputs. Exactly this tensor is known: inputs that a loss has changed (mixed, cropped,
            perturbed) go through the backbone.
        known: Their features `[B, F]`.
    """

    def __init__(self, net: NetHandle, inputs: torch.Tensor, known: torch.Tensor) -> None:
        self.layout, self.parameters = net.layout, net.parameters
        self._net, self._inputs, self._known = net, inputs, known

    def under(self, vector: torch.Tensor) -> NetHandle:
        """Returns the network with another state vector, in which a frozen backbone has no part."""
        return Remembered(self._net.under(vector), self._inputs, self._known)

    def run(self, inputs: torch.Tensor, part: Part, context: Context | None = None) -> Any:
        """Runs a part of the network; the backbone only for inputs that are not known."""
        if inputs is not self._inputs:
            return self._net.run(inputs, part, context)
        if part == "logits":
            return self._net.head(self._known)
        return {"features": self._known} if part == "outputs" else self._known

    def state(self) -> torch.Tensor:
        """Returns the state vector `[D]`."""
        return self._net.state()
