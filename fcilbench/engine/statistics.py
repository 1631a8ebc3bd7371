"""Passes over a client's samples for a method's statistics: inputs of layers, their Gram matrices, gradients.

Products and sums are float32 and float64; the network runs in the mode and the arithmetic that the caller has set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import Batch, LayerGram, LoraLinear, Net, matches
from fcilbench.engine.model import FlatModel
from fcilbench.engine.precision import without_autocast

Masked = tuple[torch.Tensor, torch.Tensor | None]
"""Inputs of a batch, and which of its tokens `[B, length]` are no padding (`None` for images)."""


def layer_inputs(
    model: FlatModel, patterns: Sequence[str], batches: Iterable[Masked]
) -> Iterator[dict[str, torch.Tensor]]:
    """Yields by name the inputs `[rows, in]` of the layers whose names match, for one batch after another.

    Layers are `nn.Linear`, and `nn.Conv2d` without groups, for which a row is a patch `[channels * height * width]`:
    the weight `[out, channels, height, width]`, flattened to `[out, in]`, acts on it. The rows of one sample stay
    together, in the order in which the layer saw them. Padding tokens and layers that did not run are left out.

    Raises:
        ValueError: If no such layer matches.
    """
    known = [
        (name, module)
        for name, module in model.network.named_modules()
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    ]
    layers = [(name, module) for name, module in known if matches(name, patterns)]
    if not layers:
        raise ValueError(f"no layer matches {', '.join(patterns)}; there are {', '.join(name for name, _ in known)}")
    calls: dict[str, list[tuple[torch.Tensor, torch.Tensor | None]]] = {}
    for inputs, mask in batches:
        calls.clear()
        _watch(model, layers, inputs, mask, lambda name, x, real: calls.setdefault(name, []).append((x, real)))
        yield {name: _rows(calls[name], len(inputs)) for name, _ in layers if name in calls}


def _rows(calls: Sequence[tuple[torch.Tensor, torch.Tensor | None]], samples: int) -> torch.Tensor:
    """Returns the rows of all calls of a layer, sample by sample."""
    rows = [x.reshape(samples, -1, x.shape[-1]) for x, _ in calls]
    kept = [
        torch.ones(own.shape[:2], dtype=torch.bool, device=own.device) if real is None else real
        for own, (_, real) in zip(rows, calls, strict=True)
    ]
    return torch.cat(rows, dim=1)[torch.cat(kept, dim=1)]


def _patches(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Returns the patches `[B, positions, in]` on which a convolution acts, or another layer's input as it is."""
    if not isinstance(layer, nn.Conv2d):
        return x
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)  # sizes also where padding is a word
    return F.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride).transpose(1, 2)


@torch.no_grad()
def _watch(
    model: FlatModel,
    layers: Sequence[tuple[str, nn.Module]],
    inputs: torch.Tensor,
    mask: torch.Tensor | None,
    take: Callable[[str, torch.Tensor, torch.Tensor | None], None],
) -> None:
    """Runs the model on one batch; `take` gets each layer's name, its float32 input and the token mask, if it fits."""

    def record(name: str, layer: nn.Module, seen: tuple[torch.Tensor, ...]) -> None:
        x = _patches(layer, seen[0]).float()
        with without_autocast(x.device):
            take(name, x, mask if mask is not None and x.dim() == 3 and x.shape[:2] == mask.shape else None)

    with ExitStack() as hooks:
        for name, layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(partial(record, name)))
        model.logits(inputs)


def layer_grams(model: FlatModel, diagonal: Callable[[str], bool], batches: Iterable[Masked]) -> dict[str, LayerGram]:
    """Sums X^T X over batches, for each linear layer whose weight, or whose adapter, is exchanged.

    Products are float32, sums float64. A layer that runs several times, or whose weight is shared, gets one sum over
    all its inputs; layers that never run are left out. Of layers with `diagonal(name)` only the diagonal is summed. The
    result has the network's order.
    """
    owners = {id(parameter): name for name, parameter in model.network.named_parameters()}
    exchanged = {piece.name for piece in model.layout.pieces}
    layers = [
        (owners[id(module.weight)].removesuffix(".weight"), module)
        for module in model.network.modules()
        if (type(module).forward is nn.Linear.forward and owners[id(module.weight)] in exchanged)
        or (isinstance(module, LoraLinear) and any(owners[id(own)] in exchanged for own in module.parameters()))
    ]
    sums: dict[str, LayerGram] = {}

    def take(name: str, x: torch.Tensor, real: torch.Tensor | None) -> None:
        rows = torch.tensor(x.numel() // x.shape[-1], dtype=torch.float64, device=x.device)
        if real is not None:
            x = x * real[:, :, None]  # a row of zeros adds nothing
            rows = real.sum(dtype=torch.float64)
        flat = x.reshape(-1, x.shape[-1])
        product = (flat.square().sum(dim=0) if diagonal(name) else flat.T @ flat).double()
        known = sums.get(name)
        sums[name] = LayerGram(product, rows) if known is None else LayerGram(known.total + product, known.rows + rows)

    for inputs, mask in batches:
        _watch(model, layers, inputs, mask, take)
    return {name: sums[name] for name, _ in layers if name in sums}


def mean_gradient(
    model: FlatModel, batches: Iterable[Batch], loss: Callable[[Net, Batch], torch.Tensor]
) -> torch.Tensor:
    """Returns the gradient `[P]` of the mean over samples of a loss, which gives the mean of a batch.

    The model's flat gradient is used and left at 0.
    """
    model.gradient.zero_()
    samples = torch.zeros((), device=model.gradient.device)
    for batch in batches:
        with torch.enable_grad():
            (loss(model, batch) * batch.mask.sum()).backward()  # type: ignore[no-untyped-call]
        samples += batch.mask.sum()
    found = model.gradient / samples
    model.gradient.zero_()
    return found
