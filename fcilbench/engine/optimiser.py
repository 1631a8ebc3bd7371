"""The optimiser of local training: AdamW, Adam or SGD on the flat vectors, for some of their pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

import torch
from torch import nn

from fcilbench.api.message import Piece, matches
from fcilbench.api.schedule import Task
from fcilbench.engine.model import FlatModel
from fcilbench.spec.protocol import Protocol


class LocalOptimiser:
    """Moves the trained pieces of a flat model along its gradient, each run of pieces at its own learning rate.

    AdamW's decay is applied here and not by torch, and Adam's and SGD's is added to the gradient here, because the head
    rows of other tasks must not decay: their gradient is exactly zero.

    Args:
        model: The resident model.
        protocol: Optimiser, learning rate and its schedule, momentum, weight decay, gradient clipping.
        train: Patterns of the names of the pieces that are trained; all others stay as they are, bit for bit.
        rates: Factors of the learning rate by pattern; the first pattern that matches a piece counts.

    Attributes:
        untrained: The pieces of the network's parameters that are not trained.

    Raises:
        ValueError: If `train` matches no parameter, or a pattern of `rates` matches none.
    """

    def __init__(
        self,
        model: FlatModel,
        protocol: Protocol,
        train: Sequence[str] = ("*",),
        rates: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._model, self._protocol = model, protocol
        pieces = [piece for piece in model.layout.pieces if piece.span.stop <= model.layout.trainable.stop]
        factors = _factors(pieces, train, rates)
        self.untrained = tuple(piece for piece in pieces if piece.name not in factors)
        self._runs = _runs(pieces, factors)
        self._decay = None if protocol.weight_decay == 0.0 else torch.zeros_like(model.gradient)
        self._shrink: torch.Tensor | None = None
        self._steps = 1
        self._optimiser = self._build()

    def _build(self) -> torch.optim.Optimizer:
        protocol, device = self._protocol, self._model.vector.device
        groups = []
        for span, factor in self._runs:
            leaf = nn.Parameter(self._model.vector[span])
            leaf.grad = self._model.gradient[span]
            rate = protocol.lr * factor
            # A captured step reads the rate of its step from the device.
            lr = rate if protocol.schedule == "constant" else torch.tensor(rate, device=device)
            groups.append({"params": [leaf], "lr": lr})
        if protocol.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=protocol.lr, momentum=protocol.momentum, fused=True)
        kind = torch.optim.AdamW if protocol.optimizer == "adamw" else torch.optim.Adam
        return kind(groups, lr=protocol.lr, weight_decay=0.0, fused=True, capturable=device.type == "cuda")

    def reset(self, task: Task, steps: int) -> None:
        """Begins a client's round of `steps` steps without moments, and without allocating."""
        self.forget()
        self._steps = steps
        if self._decay is not None:
            self._fill_decay(self._decay, task)
            scheduled = self._protocol.optimizer == "adamw" and self._protocol.schedule != "constant"
            self._shrink = self._decay - 1.0 if scheduled else None

    def forget(self) -> None:
        """Sets all moments to 0."""
        for state in self._optimiser.state.values():
            for value in state.values():
                value.zero_()

    def _fill_decay(self, decay: torch.Tensor, task: Task) -> None:
        """Writes per coordinate AdamW's factor `1 - lr wd`, or the coefficient `wd` of Adam and SGD."""
        protocol, layout = self._protocol, self._model.layout
        decoupled = protocol.optimizer == "adamw"
        neutral = 1.0 if decoupled else 0.0
        decay.fill_(neutral)
        for span, factor in self._runs:
            decay[span] = 1.0 - protocol.lr * factor * protocol.weight_decay if decoupled else protocol.weight_decay
        head = decay[layout.head]
        weight = head[: layout.classes * layout.features].view(layout.classes, layout.features)
        for rows in (weight, head[layout.classes * layout.features :]):
            rows[: task.offset] = neutral
            rows[task.seen :] = neutral

    def set_rate(self, number: int) -> None:
        """Sets the learning rate of a step, counted from 0; does nothing under a constant schedule."""
        if self._protocol.schedule == "constant":
            return
        scale = schedule(self._protocol.schedule, number, self._steps)
        for group, (_, factor) in zip(self._optimiser.param_groups, self._runs, strict=True):
            group["lr"].fill_(self._protocol.lr * factor * scale)
        if self._shrink is not None and self._decay is not None:
            torch.mul(self._shrink, scale, out=self._decay).add_(1.0)

    def clear_untrained(self) -> None:
        """Sets the gradient of the pieces that are not trained to 0."""
        for piece in self.untrained:
            self._model.gradient[piece.span].zero_()

    def step(self) -> None:
        """Clips the gradient, applies the weight decay and moves the parameters."""
        gradient, parameters = self._model.gradient, self._model.vector[self._model.layout.trainable]
        if self._protocol.clip_norm is not None:
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_((self._protocol.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        if self._decay is not None:
            if self._protocol.optimizer == "adamw":
                parameters.mul_(self._decay)
            else:
                gradient.addcmul_(self._decay, parameters)
        self._optimiser.step()


def schedule(kind: str, number: int, steps: int) -> float:
    """Returns the factor of the learning rate in a step, counted from 0, under a `Protocol.schedule`.

    Example:
        >>> [schedule("step", number, 8) for number in (0, 3, 4, 6)]
        [1.0, 1.0, 0.1, 0.01]
    """
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * number / steps))
    if kind == "step":
        return 1.0 if 2 * number < steps else 0.1 if 4 * number < 3 * steps else 0.01
    return 1.0


def _factors(pieces: Iterable[Piece], train: Sequence[str], rates: Mapping[str, float]) -> dict[str, float]:
    """Returns the factor of the learning rate of each trained piece, by name."""
    names = [piece.name for piece in pieces]
    for pattern in rates:
        if not any(matches(name, [pattern]) for name in names):
            near = get_close_matches(pattern, names, 1, 0.0)[0]
            raise ValueError(f"the learning-rate pattern {pattern!r} matches no parameter; the nearest is {near!r}")
    found = {
        name: next((factor for pattern, factor in rates.items() if matches(name, [pattern])), 1.0)
        for name in names
        if matches(name, train)
    }
    if not found:
        near = get_close_matches(next(iter(train), ""), names, 1, 0.0)[0]
        raise ValueError(f"no parameter matches the patterns to train, {', '.join(train)}; the nearest is {near!r}")
    return found


def _runs(pieces: Iterable[Piece], factors: Mapping[str, float]) -> list[tuple[slice, float]]:
    """Returns the contiguous runs of trained pieces with one factor, in the order of the vector."""
    runs: list[tuple[slice, float]] = []
    for piece in pieces:
        factor = factors.get(piece.name)
        if factor is None:
            continue
        if runs and runs[-1][0].stop == piece.start and runs[-1][1] == factor:
            runs[-1] = (slice(runs[-1][0].start, piece.span.stop), factor)
        else:
            runs.append((piece.span, factor))
    return runs
