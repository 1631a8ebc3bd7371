"""Per-sample gradients of linear layers, layer norms and token embeddings, from one backward pass over a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fcilbench.engine.layer_squares import Call, embedding_squares, linear_squares, norm_squares
from fcilbench.engine.statistics import Hooks

# By exact type: a subclass may compute something else.
_RULES: Mapping[type[nn.Module], Callable[..., dict[str, torch.Tensor]]] = {
    nn.Linear: linear_squares,
    nn.LayerNorm: norm_squares,
    nn.Embedding: embedding_squares,
}


class SampleTaps(Hooks):
    """Records inputs and outputs of a network's layers during one forward pass.

    A linear layer or layer norm is covered if it ran exactly once, owns its parameters alone, and its first dimension
    holds the samples (or samples times something, as windows or patches). An embedding is covered if its table belongs
    to embeddings only and the ids of its first run are the network's own inputs (those of later runs may be others, as
    a decoder's start tokens). A weight that is also used outside of its own layer is not noticed.

    Args:
        network: The network.
        names: Parameters of interest.
        inputs: What the network is going to be called with.

    Attributes:
        covered: Of these, those of covered layers; known after `add_squares`.
    """

    def __init__(self, network: nn.Module, names: Collection[str], inputs: torch.Tensor) -> None:
        super().__init__()
        owners: dict[int, list[nn.Module]] = defaultdict(list)
        for module in network.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    owners[id(parameter)].append(module)
        self._layers: dict[str, nn.Module] = {}
        self._alike: dict[str, list[nn.Module]] = {}
        for name, module in network.named_modules():
            wanted = all(f"{name}.{p}" in names and q.requires_grad for p, q in module.named_parameters())
            if wanted and _known(module) and (alike := _alike(module, owners)):
                self._layers[name], self._alike[name] = module, alike
        self._inputs = inputs
        self._calls: dict[str, list[Call]] = {name: [] for name in self._layers}
        self.covered: set[str] = set()

    def register(self) -> list[RemovableHandle]:
        """Registers a forward hook on every layer that may be covered."""
        layers = [(name, layer) for name, alike in self._alike.items() for layer in alike]
        return [layer.register_forward_hook(self._recorder(name)) for name, layer in layers]

    def _recorder(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], torch.Tensor], torch.Tensor]:
        def record(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            self._calls[name].append((inputs[0].detach(), output))
            # What follows may work in place; the recorded output must stay this layer's own.
            return output.clone()

        return record

    def add_squares(
        self, objective: torch.Tensor, totals: dict[str, torch.Tensor], weights: torch.Tensor, budget: int
    ) -> None:
        """Adds the weighted squares of the per-sample gradients of `objective`; may be called for several.

        Args:
            objective: Scalar, a sum over samples, computed while recording.
            totals: Sum of each parameter, by name; changed in place.
            weights: Weight of each sample, `[B]`.
            budget: Entries of per-sample gradients that may exist at once.
        """
        usable = {name: calls for name, calls in self._calls.items() if self._covers(name, len(weights))}
        outputs = [output for calls in usable.values() for _, output in calls]
        found = torch.autograd.grad(objective, outputs, allow_unused=True, retain_graph=True) if outputs else ()
        gradients = iter(found)
        for name, calls in usable.items():
            layer = self._layers[name]
            self.covered.update(f"{name}.{parameter}" for parameter, _ in layer.named_parameters())
            reached = [(inputs, gradient) for inputs, _ in calls if (gradient := next(gradients)) is not None]
            if reached:
                for parameter, squares in _RULES[type(layer)](layer, reached, weights, budget).items():
                    totals[f"{name}.{parameter}"] += squares

    def _covers(self, name: str, count: int) -> bool:
        calls = self._calls[name]
        if isinstance(self._layers[name], nn.Embedding):
            # A table of relative positions is looked up with [T, T], which may look like samples.
            own = bool(calls) and torch.equal(calls[0][0], self._inputs)
            return own and all(ids.dim() == 2 and len(ids) == count for ids, _ in calls)
        return len(calls) == 1 and calls[0][0].dim() > 1 and len(calls[0][0]) % count == 0


def _alike(module: nn.Module, owners: Mapping[int, Sequence[nn.Module]]) -> list[nn.Module]:
    """Returns the layers that compute the same as `module` with the same parameters; none if others use them too."""
    sharers = [owner for parameter in module.parameters() for owner in owners[id(parameter)]]
    if type(module) is not nn.Embedding:
        return [module] if all(owner is module for owner in sharers) else []
    rows: list[nn.Module] = [owner for owner in sharers if type(owner) is nn.Embedding and _known(owner)]
    return rows if len(rows) == len(sharers) and all(r.padding_idx == module.padding_idx for r in rows) else []


def _known(module: nn.Module) -> bool:
    """Says whether there is a rule for a layer as it is configured."""
    if type(module) is nn.Embedding:
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    if type(module) is nn.LayerNorm:
        return module.elementwise_affine and len(module.normalized_shape) == 1
    return type(module) in _RULES
