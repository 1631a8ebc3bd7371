"""Squares of per-sample parameter gradients from one forward and one backward pass over a batch.

For sample i with positions t (tokens, patches), layer inputs a_it, output gradients g_it, and a weight w_i per sample:

    linear      W: sum_i w_i (sum_t g_it a_it^T)^2                       b: sum_i w_i (sum_t g_it)^2
    convolution the same, with the patches under the kernel as a_it, per group
    layer norm  gamma: sum_i w_i (sum_t g_it * a_it normalised)^2        beta: as b
    embedding   row v: sum_i w_i (sum over t with token v of g_it)^2

A parameter that is broadcast over the samples, such as a class token, gets a copy of its own for each sample, whose
gradient is the sample's. No rule forms more than `budget` entries at once, or one sample's gradient if that is more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

Call = tuple[torch.Tensor, torch.Tensor]
"""A layer's input of one forward pass, samples first, and its output; for rules the gradient of its output."""

Squares = dict[str, torch.Tensor]


class SampleGradients:
    """Records inputs and outputs of a network's layers, and takes squares of per-sample gradients from them.

    A layer is covered if it is a linear layer, convolution or layer norm that ran exactly once, owns its parameters
    alone, and has the samples (or samples times something, as windows) as its first dimension. An embedding is covered
    if its table belongs to embeddings only and the ids of its first run are the network's own inputs (those of later
    runs may be others, as a decoder's start tokens). A subclass is covered if it computes what its base class does,
    which is tried out on the first batch. A weight that is also used outside of its own layer is not noticed.

    Args:
        network: The network, in eval mode.
        names: Parameters of interest.
        budget: Entries of per-sample gradients that may exist at once.

    Attributes:
        covered: The parameters whose squares the last `add_squares` has added.
    """

    def __init__(self, network: nn.Module, names: Collection[str], budget: int) -> None:
        self._network, self._budget = network, budget
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
        inside = {f"{name}.{p}" for name, layer in self._layers.items() for p, _ in layer.named_parameters()}
        parameters = {name: network.get_parameter(name) for name in names if name not in inside}
        self._copied = {name: p.detach() for name, p in parameters.items() if _broadcast(p, owners)}
        self._copies: Squares = {}
        self._trusted: dict[nn.Module, bool] = {}
        self._tried = not self._copied
        self._inputs = torch.empty(0)
        self._calls: dict[str, list[Call]] = {}
        self._versions: list[int] = []
        self._clones = False
        self.covered: set[str] = set()

    def _recorder(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], torch.Tensor], torch.Tensor]:
        def record(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            x = inputs[0].detach()
            if layer not in self._trusted:
                self._trusted[layer] = _computes_as_its_base(layer, x, output)
            if self._trusted[layer]:
                self._calls[name].append((x, output))
                self._versions.append(output._version)
            return output.clone() if self._clones else output

        return record

    def run(self, inputs: torch.Tensor) -> torch.Tensor:
        """Runs the network on a batch, with recording hooks on its layers, and returns its output."""
        if not self._tried and len(inputs) > 1:
            self._try_copies(inputs[:2])
        self._inputs, self._versions, self._calls = inputs, [], {name: [] for name in self._layers}
        self._copies = {
            name: p.repeat_interleave(len(inputs), dim=0).requires_grad_() for name, p in self._copied.items()
        }
        with ExitStack() as hooks:
            for name, alike in self._alike.items():
                for layer in alike:
                    hooks.enter_context(layer.register_forward_hook(self._recorder(name)))
            output: torch.Tensor = functional_call(self._network, self._copies, (inputs,))
        recorded = (own for calls in self._calls.values() for _, own in calls)
        if not self._clones and sum(own._version for own in recorded) != sum(self._versions):
            # A layer's output was changed in place, so the recorded ones are no longer the layers' own.
            self._clones = True
            return self.run(inputs)
        return output

    def _try_copies(self, pair: torch.Tensor) -> None:
        """Keeps copies only if each of two samples depends on its own copy and not on the other's."""
        self._tried = True
        with torch.no_grad():
            plain = self._network(pair)
            for own in (0, 1):
                # The other sample's copy is changed, which may not show in this one's output.
                copies = {name: torch.cat([p + own, p + 1 - own]) for name, p in self._copied.items()}
                try:
                    same = torch.allclose(functional_call(self._network, copies, (pair,))[own], plain[own], 1e-4, 1e-5)
                except RuntimeError:  # shapes that do not fit
                    same = False
                if not same:
                    self._copied = {}
                    return

    def add_squares(self, objective: torch.Tensor, totals: Squares, weights: torch.Tensor) -> None:
        """Adds the weighted squares of the per-sample gradients of `objective`; may be called for several.

        Args:
            objective: Scalar, a sum over samples, computed from what `run` returned.
            totals: Sum of each parameter, by name; changed in place.
            weights: Weight of each sample, `[B]`.
        """
        usable = {name: calls for name, calls in self._calls.items() if self._covers(name, len(weights))}
        outputs = [output for calls in usable.values() for _, output in calls]
        sources = [*outputs, *self._copies.values()]
        found = torch.autograd.grad(objective, sources, allow_unused=True, retain_graph=True) if sources else ()
        self.covered, gradients = set(self._copies), iter(found)
        for name, calls in usable.items():
            layer = self._layers[name]
            self.covered.update(f"{name}.{parameter}" for parameter, _ in layer.named_parameters())
            reached = [(x, gradient) for x, _ in calls if (gradient := next(gradients)) is not None]
            if reached:
                rule = next(rule for kind, rule in _RULES.items() if isinstance(layer, kind))
                for parameter, squares in rule(layer, reached, weights, self._budget).items():
                    totals[f"{name}.{parameter}"] += squares
        for name, gradient in zip(self._copies, gradients, strict=True):
            if gradient is not None:
                totals[name] += (weights @ gradient.flatten(1).square()).view(totals[name].shape)

    def _covers(self, name: str, count: int) -> bool:
        calls = self._calls[name]
        if isinstance(self._layers[name], nn.Embedding):
            # A table of relative positions is looked up with [T, T], which may look like samples.
            own = bool(calls) and torch.equal(calls[0][0], self._inputs)
            return own and all(ids.dim() == 2 and len(ids) == count for ids, _ in calls)
        return len(calls) == 1 and calls[0][0].dim() > 1 and len(calls[0][0]) % count == 0


def _linear(layer: nn.Linear, calls: Sequence[Call], weights: torch.Tensor, budget: int) -> Squares:
    ((inputs, gradient),) = calls
    a = inputs.reshape(len(weights), 1, -1, layer.in_features).transpose(2, 3)
    g = gradient.reshape(len(weights), 1, -1, layer.out_features).transpose(2, 3)
    return _weight_and_bias(layer, a, g, weights, budget)


def _convolution(layer: nn.Conv2d, calls: Sequence[Call], weights: torch.Tensor, budget: int) -> Squares:
    ((inputs, gradient),) = calls
    kernel, padding = cast("tuple[int, int]", layer.kernel_size), cast("tuple[int, int]", layer.padding)
    g = gradient.reshape(len(weights), layer.groups, layer.out_channels // layer.groups, -1)
    patches = F.unfold(inputs, kernel, layer.dilation, padding, layer.stride)
    a = patches.view(len(weights), layer.groups, -1, g.shape[3])
    return _weight_and_bias(layer, a, g, weights, budget)


def _weight_and_bias(
    layer: nn.Linear | nn.Conv2d, a: torch.Tensor, g: torch.Tensor, weights: torch.Tensor, budget: int
) -> Squares:
    """Returns the squares of a product's parameters from inputs `[B, G, in, T]` and gradients `[B, G, out, T]`."""
    squares = {"weight": _products(a, g, weights, budget).view(layer.weight.shape)}
    if layer.bias is not None:
        squares["bias"] = weights @ g.sum(dim=3).flatten(1).square()
    return squares


def _products(a: torch.Tensor, g: torch.Tensor, weights: torch.Tensor, budget: int) -> torch.Tensor:
    """Returns `sum_i w_i (sum_t g_it a_it^T)^2`, `[G, out, in]` or, for one group, `[out, in]`."""
    if a.shape[1] == 1 and a.shape[3] == 1:
        return (g[:, 0, :, 0].square() * weights[:, None]).T @ a[:, 0, :, 0].square()
    total = torch.zeros(*g.shape[1:3], a.shape[2], dtype=a.dtype, device=a.device)
    step = max(1, budget // total.numel())
    for start in range(0, len(weights), step):
        part = slice(start, start + step)
        gradients = (g[part] @ a[part].transpose(2, 3)).square_()
        total += (weights[part] @ gradients.flatten(1)).view(total.shape)
    return total


def _norm(layer: nn.LayerNorm, calls: Sequence[Call], weights: torch.Tensor, _budget: int) -> Squares:
    ((inputs, gradient),) = calls
    size = layer.normalized_shape[0]
    g = gradient.reshape(len(weights), -1, size)
    a = F.layer_norm(inputs, layer.normalized_shape, eps=layer.eps).reshape(len(weights), -1, size)
    squares = {"weight": weights @ (g * a).sum(dim=1).square()}
    if layer.bias is not None:
        squares["bias"] = weights @ g.sum(dim=1).square()
    return squares


def _embedding(layer: nn.Embedding, calls: Sequence[Call], weights: torch.Tensor, budget: int) -> Squares:
    """Squares of an embedding that ran once or several times, each on ids `[B, T]`.

    A sample's gradient has as many non-zero rows as it has distinct tokens, so the table-sized gradient of a sample
    never exists: equal tokens of a sample are added up, and the sum's square goes to the token's row.
    """
    ids = torch.cat([own for own, _ in calls], dim=1)
    g = torch.cat([own for _, own in calls], dim=1)
    total = torch.zeros_like(layer.weight)
    positions = torch.arange(ids.shape[1], device=ids.device)
    step = max(1, budget // max(g[0].numel(), ids.shape[1] ** 2))
    for part in (slice(start, start + step) for start in range(0, len(ids), step)):
        equal = ids[part, :, None] == ids[part, None, :]
        # The first of equal tokens stands for all of them; gradients never flow into the padding row.
        first = (equal & (positions[:, None] > positions)).sum(dim=2) == 0
        if layer.padding_idx is not None:
            first &= ids[part] != layer.padding_idx
        squares = (equal.to(g.dtype) @ g[part]).square_() * (first * weights[part, None])[:, :, None]
        total.index_put_((ids[part].flatten(),), squares.flatten(0, 1), accumulate=True)
    return {"weight": total}


_RULES: Mapping[type[nn.Module], Callable[..., Squares]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.LayerNorm: _norm,
    nn.Embedding: _embedding,
}


def _known(module: nn.Module) -> bool:
    """Returns whether there is a rule for a layer as it is configured."""
    if not isinstance(module, tuple(_RULES)) or not {name for name, _ in module.named_parameters()} <= {
        "weight",
        "bias",
    }:
        return False
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    if isinstance(module, nn.LayerNorm):
        return module.elementwise_affine and len(module.normalized_shape) == 1
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return True


def _computes_as_its_base(layer: nn.Module, x: torch.Tensor, output: torch.Tensor) -> bool:
    kind = next(kind for kind in _RULES if isinstance(layer, kind))
    if type(layer).forward is kind.forward:
        return True
    try:
        with torch.no_grad():
            expected = kind.forward(layer, x)
    except RuntimeError:  # shapes that do not fit
        return False
    return expected.shape == output.shape and torch.allclose(output, expected, 1e-4, 1e-5)


def _alike(module: nn.Module, owners: Mapping[int, Sequence[nn.Module]]) -> list[nn.Module]:
    """Returns the layers that compute the same as `module` with the same parameters; none if others use them too."""
    sharers = [owner for parameter in module.parameters() for owner in owners[id(parameter)]]
    if not isinstance(module, nn.Embedding):
        return [module] if all(owner is module for owner in sharers) else []
    rows = [owner for owner in sharers if isinstance(owner, nn.Embedding) and _known(owner)]
    alike = len(rows) == len(sharers) and all(owner.padding_idx == module.padding_idx for owner in rows)
    return list(rows) if alike else []


def _broadcast(parameter: nn.Parameter, owners: Mapping[int, Sequence[nn.Module]]) -> bool:
    """Returns whether a parameter may be one that all samples share by broadcasting, to judge by its shape."""
    return parameter.dim() > 1 and len(parameter) == 1 and len(owners[id(parameter)]) == 1
