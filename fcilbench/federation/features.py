"""Features of test samples, computed once for as long as the backbone stays the same.

A method that trains no backbone (prototypes, ridge regression, a head on frozen features) would otherwise run the whole
network over the same images after every task, and a method that deploys several heads on one backbone once for each.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from fcilbench.engine.data import DeviceData
from fcilbench.engine.flat import FlatModel


class FeatureMemory:
    """Runs a model over samples and remembers their features under its backbone, buffers included.

    Whether a feature was remembered or computed changes no bit: both are computed in the same batches, and the head
    always runs on all samples of a key at once.

    Args:
        model: The resident model.
        initial: The vector `[D]` that the federation began with; features under its backbone outlive an evaluation.
        batch_size: Samples per forward pass.
    """

    def __init__(self, model: FlatModel, initial: torch.Tensor, batch_size: int) -> None:
        self._model, self._initial, self._batch_size = model, initial, batch_size
        self._under: torch.Tensor | None = None
        self._features: dict[Hashable, torch.Tensor] = {}

    def forget_trained(self) -> None:
        """Forgets, and frees, what was computed under another backbone than the initial one: it is being trained."""
        if self._under is not self._initial:
            self._under = None
            self._features.clear()

    def load(self, vector: torch.Tensor, counters: torch.Tensor) -> None:
        """Puts a module `[D]` into the model, in eval mode; it must not change until the next `forget_trained`."""
        if self._under is None or not self._alike(vector, self._under):
            self._features.clear()
            self._under = self._initial if self._alike(vector, self._initial) else vector
        self._model.load(vector, counters)
        self._model.network.eval()

    def logits(self, key: Hashable, data: DeviceData, index: torch.Tensor, seen: int) -> torch.Tensor:
        """Returns float32 logits `[n, seen]` of the samples at `index` under the loaded module.

        Args:
            key: Names the samples; always the same ones for the same key.
            data: The split they are in.
            index: Their positions, int64 `[n]`.
            seen: Number of classes seen.
        """
        if key not in self._features:
            pieces = [self._model.features(data.plain(rows)) for rows in torch.split(index, self._batch_size)]
            self._features[key] = torch.cat(pieces) if len(index) else self._initial.new_zeros(0, self._width)
        return self._model.head(self._features[key])[:, :seen].float()

    @property
    def _width(self) -> int:
        return self._model.layout.features

    def _alike(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        parts = self._model.layout
        return all(torch.equal(one[part], other[part]) for part in (parts.backbone, parts.buffers))
