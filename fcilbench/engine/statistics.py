"""Passes over a client's samples for a method's statistics: inputs of linear layers, their Gram matrices, gradients.

All of them run in float32, outside of autocast, with the network in the mode that the caller has set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fcilbench.api.client import Batch, LayerGram, Net
from fcilbench.api.message import matches
from fcilbench.engine.model import FlatModel

Masked = tuple[torch.Tensor, torch.Tensor | None]
"""Inputs of a batch, and which of its tokens `[B, length]` are no padding (`None` for images)."""


class Hooks:
    """Base of hooks on a network's layers that exist inside a `with` block and are gone after it, whatever happens."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def register(self) -> list[RemovableHandle]:
        """Registers the hooks and returns their handles."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._handles = self.register()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()


class InputHooks(Hooks):
    """Hands over the inputs of layers while the network runs.

    Args:
        layers: The layers by name; one name may come several times.
        take: Called with a layer's name, its input float32 `[..., in]`, and the mask of its rows or `None`.

    Attributes:
        mask: Real tokens of the batch that is about to run, bool `[B, length]`; `None` if every row counts.
    """

    def __init__(
        self,
        layers: Iterable[tuple[str, nn.Module]],
        take: Callable[[str, torch.Tensor, torch.Tensor | None], None],
    ) -> None:
        super().__init__()
        self._layers, self._take = list(layers), take
        self.mask: torch.Tensor | None = None

    def register(self) -> list[RemovableHandle]:
        """Registers a hook before every layer."""
        return [layer.register_forward_pre_hook(self._recorder(name)) for name, layer in self._layers]

    def _recorder(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def record(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            x = inputs[0].detach().float()
            tokens = self.mask is not None and x.dim() == 3 and x.shape[:2] == self.mask.shape
            with torch.no_grad():
                self._take(name, x, self.mask if tokens else None)

        return record


def layer_inputs(
    model: FlatModel, patterns: Sequence[str], batches: Iterable[Masked]
) -> Iterator[dict[str, torch.Tensor]]:
    """Yields the inputs of `nn.Linear` layers, frozen ones too, for one batch after another.

    The rows of all batches, one after another, do not depend on the batch size: those of one sample stay together, in
    the order in which the layer saw them.

    Args:
        model: The model.
        patterns: Patterns of the layers' names in the network.
        batches: The inputs with their token masks.

    Yields:
        By layer name float32 `[rows, in]`, without rows of padding tokens. Layers that did not run are missing.

    Raises:
        ValueError: If no linear layer matches.
    """
    linear = [(name, module) for name, module in model.network.named_modules() if isinstance(module, nn.Linear)]
    layers = [(name, module) for name, module in linear if matches(name, patterns)]
    if not layers:
        raise ValueError(f"no linear layer matches {', '.join(patterns)}; there are {', '.join(n for n, _ in linear)}")
    for inputs, mask in batches:
        yield _inputs(model, layers, inputs, mask)


def _inputs(
    model: FlatModel, layers: Sequence[tuple[str, nn.Module]], inputs: torch.Tensor, mask: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Runs the model on one batch and returns the rows that each layer saw."""
    found: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def take(name: str, x: torch.Tensor, real: torch.Tensor | None) -> None:
        rows = x.reshape(len(inputs), -1, x.shape[-1])
        kept = torch.ones(rows.shape[:2], dtype=torch.bool, device=x.device) if real is None else real
        found.setdefault(name, []).append((rows, kept))

    with torch.no_grad(), InputHooks(layers, take) as hooks:
        hooks.mask = mask
        model.logits(inputs)
    return {name: _rows(found[name]) for name, _ in layers if name in found}


def _rows(calls: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Returns the rows of all calls of a layer, sample by sample."""
    rows, kept = (torch.cat(parts, dim=1) for parts in zip(*calls, strict=True))
    return rows[kept]


def layer_grams(model: FlatModel, diagonal: Callable[[str], bool], batches: Iterable[Masked]) -> dict[str, LayerGram]:
    """Sums X^T X over batches, for each linear layer whose weight is exchanged.

    Products are float32, sums float64. A layer that runs several times, or whose weight is shared, gets the sum of all
    its inputs. Layers that compute something else than `nn.Linear` and layers that never run are left out.

    Args:
        model: The model.
        diagonal: Whether of a layer, told by its name, only the diagonal is wanted.
        batches: The inputs with their token masks.

    Returns:
        By layer, in the network's order; its weight is the piece `<name>.weight`.
    """
    owners = {id(parameter): name for name, parameter in model.network.named_parameters()}
    exchanged = {piece.name for piece in model.layout.pieces}
    layers = [
        (owners[id(module.weight)].removesuffix(".weight"), module)
        for module in model.network.modules()
        if type(module).forward is nn.Linear.forward and owners[id(module.weight)] in exchanged
    ]
    sums: dict[str, LayerGram] = {}

    def take(name: str, x: torch.Tensor, real: torch.Tensor | None) -> None:
        rows = torch.tensor(x.numel() // x.shape[-1], dtype=torch.float64, device=x.device)
        if real is not None:
            x = x * real[:, :, None]  # a row of zeros adds nothing
            rows = real.sum(dtype=torch.float64)
        flat = x.reshape(-1, x.shape[-1])
        product = flat.square().sum(dim=0, dtype=torch.float64) if diagonal(name) else (flat.T @ flat).double()
        known = sums.get(name)
        sums[name] = LayerGram(product, rows) if known is None else LayerGram(known.total + product, known.rows + rows)

    with torch.no_grad(), InputHooks(layers, take) as hooks:
        for inputs, mask in batches:
            hooks.mask = mask
            model.logits(inputs)
    return {name: sums[name] for name, _ in layers if name in sums}


def mean_gradient(
    model: FlatModel, batches: Iterable[Batch], loss: Callable[[Net, Batch], torch.Tensor]
) -> torch.Tensor:
    """Returns the gradient `[P]` of the mean of a loss over samples, at the model's parameters.

    Args:
        model: The model; its flat gradient is used and left at 0.
        batches: The samples.
        loss: Scalar mean loss of a batch.

    Raises:
        ValueError: If there is no sample.
    """
    model.gradient.zero_()
    samples = torch.zeros((), device=model.gradient.device)
    for batch in batches:
        with torch.enable_grad():
            (loss(model, batch) * batch.mask.sum()).backward()  # type: ignore[no-untyped-call]
        samples += batch.mask.sum()
    if not samples:
        raise ValueError("the mean gradient of no samples is not defined")
    found = model.gradient / samples
    model.gradient.zero_()
    return found
