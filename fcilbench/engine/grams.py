"""Gram matrices of the inputs of all linear layers, by forward hooks during ordinary forward passes."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fcilbench.api.client import LayerGram
from fcilbench.engine.taps import Taps


class GramTaps(Taps):
    """Sums X^T X over all forward passes inside the `with` block, for each `nn.Linear` whose weight is exchanged.

    Products are float32, sums float64. A layer that runs several times, or whose weight is shared, gets the sum of all
    its inputs. Run it outside of autocast, which would round the products. Subclasses of `nn.Linear` may compute
    something else and are left out, as are layers that never run.

    Args:
        network: The network.
        names: Tensors that are exchanged; a layer `L` is covered if `L.weight` is one of them.
        diagonal: Layers of which only the diagonal is wanted, told by their name.

    Example:
        >>> with GramTaps(network, ["head.weight"], lambda name: False) as taps:
        ...     network(inputs)
        >>> taps.grams()["head"].total.shape
        torch.Size([768, 768])
    """

    def __init__(self, network: nn.Module, names: Collection[str], diagonal: Callable[[str], bool]) -> None:
        super().__init__()
        owners = {id(parameter): name for name, parameter in network.named_parameters()}
        self._layers: list[tuple[str, nn.Linear]] = []
        for module in network.modules():
            if type(module) is nn.Linear and owners[id(module.weight)] in names:
                self._layers.append((owners[id(module.weight)].removesuffix(".weight"), module))
        self._diagonal = diagonal
        self._totals: dict[str, torch.Tensor] = {}
        self._rows: dict[str, torch.Tensor] = {}
        self.mask: torch.Tensor | None = None
        """Real tokens of the batch that is about to run, bool `[B, length]`; `None`: every row of an input counts."""

    def listen(self) -> list[RemovableHandle]:
        """Registers a hook before every layer."""
        return [layer.register_forward_pre_hook(self._recorder(name)) for name, layer in self._layers]

    def _recorder(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def record(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            with torch.no_grad():
                self._add(name, inputs[0].detach().float())

        return record

    def _add(self, name: str, inputs: torch.Tensor) -> None:
        rows = torch.tensor(inputs.numel() // inputs.shape[-1], dtype=torch.float64, device=inputs.device)
        if self.mask is not None and inputs.dim() == 3 and inputs.shape[:2] == self.mask.shape:
            inputs = inputs * self.mask[:, :, None]  # a row of zeros adds nothing
            rows = self.mask.sum(dtype=torch.float64)
        flat = inputs.reshape(-1, inputs.shape[-1])
        product = flat.square().sum(dim=0, dtype=torch.float64) if self._diagonal(name) else (flat.T @ flat).double()
        if name in self._totals:
            self._totals[name] += product
            self._rows[name] += rows
        else:
            self._totals[name], self._rows[name] = product, rows

    def grams(self) -> dict[str, LayerGram]:
        """Returns what was summed so far, by layer in the network's order."""
        names = dict.fromkeys(name for name, _ in self._layers)
        return {name: LayerGram(self._totals[name], self._rows[name]) for name in names if name in self._totals}
