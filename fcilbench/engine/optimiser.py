"""The optimiser of local training: AdamW, Adam or SGD on the flat vectors, for some of their pieces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

import torch
from torch import nn

from fcilbench.api import Piece, Protocol, Task, matches
from fcilbench.engine.model import FlatModel


class LocalOptimiser:
    """Moves the trained pieces of a flat model along its gradient, each run of pieces at its own learning rate.

    Weight decay is applied here and not by torch, because the head rows of other tasks must not decay: their gradient
    is exactly zero.

    `train` are patterns of the names of the pieces that are trained; the parameters of all others, `untrained`, keep
    every bit. `rates` are factors of the learning rate by pattern; the first pattern that matches a piece counts.

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
        self._model, self._protocol, device = model, protocol, model.vector.device
        pieces = [piece for piece in model.layout.pieces if piece.span.stop <= model.layout.trainable.stop]
        _check_patterns([piece.name for piece in pieces], train, rates)
        self.untrained: list[Piece] = []
        self._runs: list[tuple[slice, float]] = []
        for piece in pieces:
            factor = next((own for pattern, own in rates.items() if matches(piece.name, [pattern])), 1.0)
            if not matches(piece.name, train):
                self.untrained.append(piece)
            elif self._runs and self._runs[-1][0].stop == piece.start and self._runs[-1][1] == factor:
                self._runs[-1] = (slice(self._runs[-1][0].start, piece.span.stop), factor)
            else:
                self._runs.append((piece.span, factor))
        self._decay = None if protocol.weight_decay == 0.0 else torch.zeros_like(model.gradient)
        self._shrink: torch.Tensor | None = None
        self._steps = 1
        groups = []
        for span, factor in self._runs:
            leaf = nn.Parameter(model.vector[span])
            leaf.grad = model.gradient[span]
            rate = protocol.lr * factor
            # A captured step reads the rate of its step from the device.
            lr = rate if protocol.schedule == "constant" else torch.tensor(rate, device=device)
            groups.append({"params": [leaf], "lr": lr})
        self._optimiser: torch.optim.Optimizer
        if protocol.optimizer == "sgd":
            self._optimiser = torch.optim.SGD(groups, lr=protocol.lr, momentum=protocol.momentum, fused=True)
        else:
            kind = torch.optim.AdamW if protocol.optimizer == "adamw" else torch.optim.Adam
            capturable = device.type == "cuda"
            self._optimiser = kind(groups, lr=protocol.lr, weight_decay=0.0, fused=True, capturable=capturable)

    def reset(self, task: Task, steps: int, keep: bool = False) -> None:
        """Starts a training run of `steps` steps with all moments at 0, or goes on with it if they are to `keep`.

        Allocates nothing under a constant rate.
        """
        if not keep:
            self.forget()
        self._steps, protocol, layout, decay = steps, self._protocol, self._model.layout, self._decay
        if decay is None:
            return
        # Per coordinate AdamW's factor `1 - lr wd`, or the coefficient `wd` of Adam and SGD.
        decoupled = protocol.optimizer == "adamw"
        neutral = 1.0 if decoupled else 0.0
        decay.fill_(neutral)
        for span, factor in self._runs:
            decay[span] = 1.0 - protocol.lr * factor * protocol.weight_decay if decoupled else protocol.weight_decay
        weight, bias = torch.split(decay[layout.head], [layout.classes * layout.features, layout.classes])
        for rows in (weight.view(layout.classes, layout.features), bias):
            rows[: task.offset] = neutral
            rows[task.seen :] = neutral
        self._shrink = decay - 1.0 if decoupled and protocol.schedule != "constant" else None

    def forget(self) -> None:
        """Sets all moments and the step count to 0, as a new client's optimiser begins."""
        for state in self._optimiser.state.values():
            for value in state.values():
                value.zero_()

    def moments(self) -> list[dict[str, torch.Tensor]]:
        """Returns copies of the moments and step counts; an empty list before the first step."""
        return [{name: value.clone() for name, value in state.items()} for state in self._optimiser.state.values()]

    def restore(self, moments: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Sets what `moments` returned, in place where there are moments already: a captured step reads them there."""
        if not moments:
            self.forget()
            return
        leaves = [group["params"][0] for group in self._optimiser.param_groups]
        for leaf, own in zip(leaves, moments, strict=True):
            state = self._optimiser.state[leaf]
            for name, value in own.items():
                if name in state:
                    state[name].copy_(value)
                else:
                    state[name] = value.clone()

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
    """Returns the factor of the learning rate in a step, counted from 0, under a `Protocol.schedule`."""
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * number / steps))
    if kind == "step":
        return 1.0 if 2 * number < steps else 0.1 if 4 * number < 3 * steps else 0.01
    return 1.0


def _check_patterns(names: Sequence[str], train: Sequence[str], rates: Mapping[str, float]) -> None:
    for pattern in rates:
        if not any(matches(name, [pattern]) for name in names):
            near = get_close_matches(pattern, names, 1, 0.0)[0]
            raise ValueError(f"the learning-rate pattern {pattern!r} matches no parameter; the nearest is {near!r}")
    if not any(matches(name, train) for name in names):
        near = get_close_matches(next(iter(train), ""), names, 1, 0.0)[0]
        raise ValueError(f"no parameter matches the patterns to train, {', '.join(train)}; the nearest is {near!r}")
