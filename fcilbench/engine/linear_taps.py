"""Per-sample gradients of linear layers, from one backward pass over a whole batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from types import TracebackType

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class LinearTaps:
    """Records inputs and outputs of a network's `nn.Linear` layers during one forward pass.

    A layer is covered if it ran exactly once, owns its parameters alone, and its first dimension holds the samples (or
    samples times something, as windows or patches). A weight that is also used outside of its own layer is not noticed.

    Args:
        network: The network.
        names: Parameters of interest.

    Attributes:
        covered: Of these, those of covered layers; known after `add_squares`.
    """

    def __init__(self, network: nn.Module, names: Collection[str]) -> None:
        owners = Counter(id(p) for m in network.modules() for p in m._parameters.values() if p is not None)
        self._layers = {
            name: module
            for name, module in network.named_modules()
            if type(module) is nn.Linear  # a subclass may compute something else
            and all(owners[id(p)] == 1 and p.requires_grad for p in module.parameters())
            and all(f"{name}.{p}" in names for p, _ in module.named_parameters())
        }
        self._calls: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in self._layers}
        self._handles: list[RemovableHandle] = []
        self.covered: set[str] = set()

    def __enter__(self) -> LinearTaps:
        for name, layer in self._layers.items():
            self._handles.append(layer.register_forward_hook(self._recorder(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _recorder(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
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
        count = len(weights)
        once = {name: calls[0] for name, calls in self._calls.items() if len(calls) == 1}
        once = {name: call for name, call in once.items() if len(call[0]) % count == 0 and call[0].dim() > 1}
        outputs = [output for _, output in once.values()]
        gradients = torch.autograd.grad(objective, outputs, allow_unused=True, retain_graph=True) if outputs else ()
        for (name, (inputs, _)), gradient in zip(once.items(), gradients, strict=True):
            layer = self._layers[name]
            self.covered.update(f"{name}.{parameter}" for parameter, _ in layer.named_parameters())
            if gradient is None:
                continue
            g = gradient.reshape(count, -1, layer.out_features)
            if layer.bias is not None:
                totals[f"{name}.bias"] += weights @ g.sum(dim=1).square()
            a = inputs.reshape(count, -1, layer.in_features)
            totals[f"{name}.weight"] += _weight_squares(a, g, weights, budget)


def _weight_squares(a: torch.Tensor, g: torch.Tensor, weights: torch.Tensor, budget: int) -> torch.Tensor:
    """Returns `sum_i w_i (sum_t g_it a_it^T)^2`, `[out, in]`, from inputs `[B, T, in]` and gradients `[B, T, out]`."""
    if a.shape[1] == 1:
        return (g[:, 0].square() * weights[:, None]).T @ a[:, 0].square()
    total = torch.zeros(g.shape[2], a.shape[2], dtype=a.dtype, device=a.device)
    step = max(1, budget // total.numel())
    for start in range(0, len(weights), step):
        part = slice(start, start + step)
        gradients = torch.einsum("bto,bti->boi", g[part], a[part]).square_()
        total += torch.einsum("b,boi->oi", weights[part], gradients)
    return total
