"""The trained network, and its parameters, gradients and float buffers as views of flat vectors.

Updates, aggregation and checkpoints are then vector algebra: no state-dict walks and no deep copies. Each client starts
from a copy of the global vector, never from a reference to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fcilbench.api import BARE, Context, FeatureExtractor, Layout, Net, Piece, Task
from fcilbench.api.client import Part
from fcilbench.api.lora import FrozenBatchNorm
from fcilbench.engine.features import StartingPasses
from fcilbench.engine.precision import without_autocast


class Network(nn.Module):
    """A backbone and a classifier head that has the rows of all C classes from the start."""

    def __init__(self, extractor: FeatureExtractor, classes: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = nn.Linear(extractor.feature_dim, classes)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: torch.Tensor, part: Part = "logits", context: Context | None = None) -> Any:
        """Maps inputs to logits `[B, C]`, features `[B, F]` or all outputs by name, or (`head`) features to logits.

        Under autocast only the extractor runs in low precision: its outputs are cast to float32, and so is the head.
        """
        if part != "head":
            found = self.extractor.outputs(inputs, context or {})
            outputs = {name: _wide(value) for name, value in found.items()}
            if part == "outputs":
                return outputs
            inputs = outputs["features"]
        if part == "features":
            return inputs
        with without_autocast(inputs.device):
            return self.head(_wide(inputs))


class FlatModel(Net):
    """A network bound to one flat float32 vector `[D]`: backbone, head, float buffers, in this order.

    Parameters with `requires_grad=False` stay in the module and are no part of the vector: they never change and are
    never sent. Integer buffers (BatchNorm's counters) are not in the vector either; the server takes the largest
    of the merged clients. Those of several integers (EfficientFormer's tables of positions) are constant, and not sent.

    Attributes:
        network: The module; its trainable parameters and float buffers are views of `vector`.
        gradient: `[P]`, the flat gradient of the trainable part; every parameter's `.grad` is a view of it.
        counters: int64 `[K]`, as the network began.
        batch_norms: The modules that normalise by the statistics of a batch.
        passes: What keeps the passes of the backbone as it was before training; `None`: they are not kept.
        parameters: `vector[:P]` as a leaf that requires gradient (shares memory with `vector` and `gradient`).
    """

    def __init__(self, network: Network, device: torch.device) -> None:
        self.network = network.to(device)
        _forget_biases(network)
        head = {id(parameter) for parameter in network.head.parameters()}
        trainable = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
        parameters = sorted(trainable, key=lambda named: id(named[1]) in head)  # a stable sort: the head comes last
        if sum(id(parameter) in head for _, parameter in parameters) != len(head):
            raise ValueError("the classifier head's weight and bias must stay trainable")
        for _, parameter in parameters:
            if parameter.dtype != torch.float32:
                raise ValueError(f"trainable parameters must be float32, got {parameter.dtype}")
        buffers = _buffers(network)
        floats = [each for each in buffers if each[2].is_floating_point()]
        self._integers = [owner for _, owner, buffer in buffers if not buffer.is_floating_point()]
        pieces = _pieces([*parameters, *((name, buffer) for name, _, buffer in floats)])
        body, total = pieces[len(parameters) - len(head)].start, pieces[len(parameters) - 1].span.stop
        whole = pieces[-1].span.stop
        classes, features = network.head.out_features, network.head.in_features
        self.layout = Layout(slice(0, body), slice(body, total), slice(total, whole), classes, features, pieces)
        self.vector, self.gradient = torch.empty(whole, device=device), torch.zeros(total, device=device)
        views = self.named(self.vector)
        for (name, parameter), piece in zip(parameters, pieces, strict=False):
            views[name].copy_(parameter.detach())
            parameter.data = views[name]
            parameter.grad = self.gradient[piece.span].view(piece.shape)
        for name, (module, key), buffer in floats:
            views[name].copy_(buffer)
            module._buffers[key] = views[name]
        self.parameters = nn.Parameter(self.vector[:total])
        self.parameters.grad = self.gradient
        self.counters = self.read_counters()
        norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
        self.batch_norms = [module for module in norms if not isinstance(module, FrozenBatchNorm)]
        self.task = Task(0, 0, classes)
        self._arithmetic: Callable[[], AbstractContextManager[object]] = nullcontext
        self.passes: StartingPasses | None = None

    def reading(self) -> AbstractContextManager[None]:
        """Returns the context for passes over samples of the data set, which are read if they were made before."""
        return nullcontext() if self.passes is None else self.passes()

    @contextmanager
    def arithmetic(self, make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """Within this block the network, and nothing around it, runs in contexts that `make` returns."""
        self._arithmetic = make
        try:
            yield
        finally:
            self._arithmetic = nullcontext

    def load(self, vector: torch.Tensor, counters: torch.Tensor) -> None:
        """Copies a state vector `[D]` and counters `[K]` into the network."""
        self.vector.copy_(vector)
        for (module, key), value in zip(self._integers, counters, strict=True):
            cast("torch.Tensor", module._buffers[key]).copy_(value)

    def read_counters(self) -> torch.Tensor:
        """Returns the integer buffers, int64 `[K]`."""
        values = [cast("torch.Tensor", module._buffers[key]) for module, key in self._integers]
        rows = [value.reshape(()).to(torch.int64) for value in values]
        return torch.stack(rows) if rows else torch.zeros(0, dtype=torch.int64, device=self.vector.device)

    def named(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns a state vector `[D]` as tensors by their names in the network; they are views."""
        pieces = self.layout.pieces
        # One split, whose gradient is one concatenation: a slice's gradient is as long as the whole vector.
        parts = torch.split(vector, [piece.span.stop - piece.span.start for piece in pieces])
        return {piece.name: part.view(piece.shape) for piece, part in zip(pieces, parts, strict=True)}

    def under(self, vector: torch.Tensor, frozen: Mapping[str, torch.Tensor] | None = None) -> Net:
        """Returns the network in eval mode with another state vector `[D]`.

        Gradients flow into the parameters of the vector and into the inputs if these require them. The resident
        vector, the mode of the network and its running statistics do not change. `frozen` are tensors in place of
        parameters and buffers outside the state vector, by their names in the network.

        Raises:
            ValueError: If the network has no such tensor outside the state vector, or one of another shape.
        """
        inside = {piece.name for piece in self.layout.pieces}
        outside = dict(itertools.chain(self.network.named_parameters(), self.network.named_buffers()))
        own: dict[str, torch.Tensor] = {}
        for name, tensor in (frozen or {}).items():
            if name in inside or name not in outside or outside[name].shape != tensor.shape:
                raise ValueError(f"the network has no frozen tensor {name!r} of shape {tuple(tensor.shape)}")
            own[name] = tensor.to(outside[name])
        return _Borrowed(self, vector, own)

    def run(self, inputs: torch.Tensor, part: Part, context: Context | None = None) -> Any:
        """Runs a part of the network in the mode it is in."""
        with self._arithmetic():
            return self.network(inputs, part, context)


class Bare(Net):
    """A network without what its method adds to what passes, such as prompts: its features are those of the backbone.

    Its parameters and vector are those of the network that it is made of, at the time it is made.
    """

    def __init__(self, net: Net) -> None:
        self.layout, self.vector, self.parameters, self.task = net.layout, net.vector, net.parameters, net.task
        self._net = net

    def under(self, vector: torch.Tensor) -> Net:
        """Returns the same network, as bare as this one, with another state vector `[D]`."""
        return Bare(self._net.under(vector))

    def run(self, inputs: torch.Tensor, part: Part, context: Context | None = None) -> Any:
        """Runs a part of the network without what its method adds."""
        return self._net.run(inputs, part, {**(context or {}), **BARE})


class _Borrowed(Net):
    """The resident network in eval mode, run with tensors that are not its own."""

    def __init__(self, model: FlatModel, vector: torch.Tensor, frozen: Mapping[str, torch.Tensor]) -> None:
        self.layout, self.vector, self._model, self.task = model.layout, vector, model, model.task
        self.parameters = vector[model.layout.trainable]
        self._tensors = {**model.named(vector), **frozen}
        for piece in self.layout.pieces:
            if piece.start >= self.layout.buffers.start:  # torch does not differentiate by running statistics
                self._tensors[piece.name] = self._tensors[piece.name].detach()

    def under(self, vector: torch.Tensor) -> Net:
        return self._model.under(vector)

    def run(self, inputs: torch.Tensor, part: Part, context: Context | None = None) -> Any:
        network = self._model.network
        with evaluating(network), self._model._arithmetic():
            return functional_call(network, self._tensors, (inputs, part, context))


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Puts all modules into evaluation mode, and at the end of the block each back into its own."""
    training = [module for module in network.modules() if module.training]
    if training:  # torch sets every module anew, which takes longer than a small network's pass
        network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class _Forgetful(dict[str, torch.Tensor]):
    """A cache in which nothing is found, and which looks empty, so that nobody replaces it by another."""

    def __contains__(self, key: object) -> bool:
        return False

    def __bool__(self) -> bool:
        return False


def _forget_biases(network: nn.Module) -> None:
    """Switches off the caches of attention biases that LeViT, EfficientFormer and their relatives in timm have.

    In evaluation mode they would keep the biases of one state vector, and of its gradient, for the next one.
    """
    for module in network.modules():
        if "attention_bias_cache" in vars(module):
            vars(module)["attention_bias_cache"] = _Forgetful()


def _pieces(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[Piece, ...]:
    """Places named tensors one after another."""
    pieces, start = [], 0
    for name, tensor in tensors:
        pieces.append(Piece(name, tuple(tensor.shape), start))
        start = pieces[-1].span.stop
    return tuple(pieces)


def _buffers(network: nn.Module) -> list[tuple[str, tuple[nn.Module, str], torch.Tensor]]:
    """Returns the buffers that may change, with their names and owners.

    Non-persistent buffers are derived, and tables of integers are constant: neither is ever sent.
    """
    found = []
    for prefix, module in network.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                if buffer.is_floating_point() and buffer.dtype != torch.float32:
                    raise ValueError(f"buffer {key!r} of {type(module).__name__} is {buffer.dtype}: make it float32")
                if not buffer.is_floating_point() and buffer.numel() != 1:  # a table of indices, not a counter
                    continue
                found.append((f"{prefix}.{key}".lstrip("."), (module, key), buffer))
    return found
