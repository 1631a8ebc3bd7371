"""Features of test samples, computed once for as long as the backbone stays the same.

A method that trains no backbone (prototypes, ridge regression, a head on frozen features) would otherwise run the whole
network over the same images after every task, and a method that deploys several heads on one backbone once for each.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import ExitStack

import torch

from fcilbench.api.predict import Module
from fcilbench.engine.data import DeviceData
from fcilbench.engine.model import FlatModel


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
        self._start = Module(initial)
        self._under: Module | None = None
        self._frozen = ExitStack()
        self._features: dict[Hashable, torch.Tensor] = {}

    def forget_trained(self) -> None:
        """Forgets, and frees, what was computed under another backbone than the initial one: it is being trained."""
        self._frozen.close()
        if self._under is not self._start:
            self._under = None
            self._features.clear()

    def load(self, built: Module | torch.Tensor, counters: torch.Tensor) -> None:
        """Puts a module into the model, in eval mode; it must not change until the next `forget_trained`."""
        module = Module(built) if isinstance(built, torch.Tensor) else built
        if self._under is None or not self._alike(module, self._under):
            self._features.clear()
            self._under = self._start if self._alike(module, self._start) else module
        self._frozen.close()
        self._frozen.enter_context(self._model.replaced(module.frozen))
        self._model.load(module.vector, counters)
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
            pieces = [self._run(data, rows) for rows in torch.split(index, self._batch_size)]
            self._features[key] = torch.cat(pieces) if len(index) else self._initial.new_zeros(0, self._width)
        return self._model.head(self._features[key])[:, :seen].float()

    def _run(self, data: DeviceData, rows: torch.Tensor) -> torch.Tensor:
        context = {} if data.memo is None else {"memo": data.memo[rows]}
        return self._model.outputs(data.plain(rows), context)["features"]

    @property
    def _width(self) -> int:
        return self._model.layout.features

    def _alike(self, one: Module, other: Module) -> bool:
        parts = (self._model.layout.backbone, self._model.layout.buffers)
        return (
            all(torch.equal(one.vector[part], other.vector[part]) for part in parts)
            and set(one.frozen) == set(other.frozen)
            and all(torch.equal(tensor, other.frozen[name]) for name, tensor in one.frozen.items())
        )
