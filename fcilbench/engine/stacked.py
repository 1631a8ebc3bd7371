"""Local training of several clients at once: one batched step for all of them, rows of one matrix as their models.

A client of a small model keeps a device busy for a fraction of a step's overhead; several share it. Every client keeps
its own batches, random numbers, optimiser state and number of steps, so the result is the one-by-one result up to
rounding. A client that is finished leaves the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import nn
from torch.func import vmap

from fcilbench.api.client import Batch, Context
from fcilbench.api.protocol import Protocol
from fcilbench.engine.attention import plain_attention
from fcilbench.engine.data import DeviceData
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.lots import Lot, Work, one_pass, side_by_side
from fcilbench.engine.precision import autocast
from fcilbench.engine.step import LocalStep, Objective

Random = np.random.Generator

_TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}
"""Relative difference of the first gradient that arithmetic in another order may make."""


class StackError(RuntimeError):
    """These clients cannot be trained together; the message says why. Nothing but the stack has changed."""


class StackedTrainer:
    """Trains up to K clients from one start.

    Args:
        model: The resident model; its network is called with the clients' parameters, and its own are overwritten.
        data: Training samples.
        protocol: Learning rate, weight decay, precision, augmentation.
        size: K; models, gradients and AdamW's moments take 16 K P bytes.

    Attributes:
        size: K.
        vectors: What the clients of the last call have become, `[K, D]`, in the order of that call.
    """

    def __init__(self, model: FlatModel, data: DeviceData, protocol: Protocol, size: int) -> None:
        self.size = size
        self.vectors = torch.empty(size, len(model.vector), device=model.vector.device)
        self._gradients = torch.zeros_like(self.vectors)
        self._members = [nn.Parameter(row) for row in self.vectors]
        self._model, self._data, self._protocol = model, data, protocol
        self._step = LocalStep(model, data, protocol)
        self._optimiser = torch.optim.AdamW(self._members, lr=protocol.lr, weight_decay=0.0, fused=True)

    def train(
        self, start: torch.Tensor, objectives: Sequence[Objective], works: Sequence[Work], randoms: Sequence[Random]
    ) -> torch.Tensor:
        """Trains the clients and leaves their models in `vectors`.

        Args:
            start: The vector `[D]` that all begin with.
            objectives: One each: the same functions, the client's own context.
            works: Samples, task, epochs and batch size of each; task and batch size are the same.
            randoms: Each client's stream of this round.

        Returns:
            Each client's mean loss over the steps of its last epoch, `[k]` on the device.

        Raises:
            StackError: If the model has buffers or random layers, the contexts do not fit, the loss cannot be batched,
                or the batched gradient is not the plain one.
        """
        parts = self._model.parts
        if parts.buffers.start != parts.buffers.stop or len(self._model.counters):
            raise StackError("the model has buffers that change in training")
        # The first rows are those with most steps, so that whoever is finished leaves from the end.
        order = sorted(range(len(works)), key=lambda k: -works[k].steps)
        objectives = [objectives[k] for k in order]
        works = [works[k] for k in order]
        randoms = [randoms[k] for k in order]
        self.vectors[: len(works)].copy_(start)
        self._reset(len(works))
        losses = self._run(start, objectives, works, randoms)
        place = torch.tensor(order, device=start.device).argsort()
        self.vectors[: len(works)] = self.vectors[place]
        return losses[place]

    def _reset(self, active: int) -> None:
        for state in self._optimiser.state.values():
            for value in state.values():
                value.zero_()
        for member, gradient in zip(self._members[:active], self._gradients, strict=False):
            member.grad = gradient
        self._model.network.train()

    def _run(
        self, start: torch.Tensor, objectives: Sequence[Objective], works: Sequence[Work], randoms: Sequence[Random]
    ) -> torch.Tensor:
        decay = self._step.decay(works[0].task)
        totals = torch.zeros(len(works), device=start.device)
        lots: list[list[Lot]] = [[] for _ in works]
        for number in range(works[0].steps):
            active = sum(work.steps > number for work in works)
            for own, work, random in zip(lots[:active], works, randoms, strict=False):
                if not own:
                    own.extend(one_pass(work, self._data, random))
            for member in self._members[active:]:
                member.grad = None  # AdamW passes it by
            losses = self._gradient(start if number == 0 else None, objectives[:active], works[0], lots)
            if decay is not None:
                self.vectors[:active].mul_(decay)
            self._optimiser.step()
            last = [float(number >= work.steps - work.pass_steps) / work.pass_steps for work in works[:active]]
            totals[:active] += losses * torch.tensor(last, device=losses.device)
        return totals

    def _gradient(
        self, check: torch.Tensor | None, objectives: Sequence[Objective], work: Work, lots: list[list[Lot]]
    ) -> torch.Tensor:
        """Fills the gradients of the active clients with their next lots; `check` compares the first with plain."""
        ready = [own.pop(0) for own in lots[: len(objectives)]]
        rows, draws, mask = side_by_side(ready)
        flat = {name: value.flatten(0, 1) for name, value in draws.items()}
        everything = rows.flatten()
        data = self._data
        inputs = data.augmented(everything, flat) if self._protocol.augment else data.plain(everything)
        inputs = inputs.view(*rows.shape, *inputs.shape[1:])
        try:
            losses = self._backward(objectives, Batch(inputs, data.labels[rows], mask, work.task))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise StackError(str(error).strip().splitlines()[0]) from error
        with torch.no_grad():
            for objective, gradient, vector in zip(objectives, self._gradients, self.vectors, strict=False):
                objective.gradient(gradient, vector, objective.context)
        if check is not None:
            self._model.load(check, self._model.counters)
            first = {name: value[0] for name, value in draws.items()}
            self._step.gradient(objectives[0], work.task, rows[0], first, mask[0])
            self._compare(self._model.gradient)
        return losses

    def _backward(self, objectives: Sequence[Objective], batch: Batch) -> torch.Tensor:
        """Writes the gradient of each client's loss into its row; `batch` has a leading dimension of clients."""
        count, model, task = len(objectives), self._model, batch.task
        theta = self.vectors[:count].detach().requires_grad_()
        tensors = {
            piece.name: self.vectors[:count, piece.span].detach().view(count, *piece.shape).requires_grad_()
            for piece in model.parts.layout
        }
        shared, own = _contexts([objective.context for objective in objectives])

        def loss(tensors: Context, theta: torch.Tensor, rows: tuple[torch.Tensor, ...], own: Context) -> torch.Tensor:
            inputs, labels, mask = rows
            net = model.with_parameters(tensors, theta)
            return objectives[0].loss(net, Batch(inputs, labels, mask, task), {**shared, **own})

        with autocast(self._protocol.precision, self.vectors.device), _attention(self.vectors.device):
            losses = vmap(loss)(tensors, theta, (batch.inputs, batch.labels, batch.mask), own)
        wanted = [theta, *tensors.values()]
        flat, *gradients = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
        rows = self._gradients[:count]
        for piece, gradient in zip(model.parts.layout, gradients, strict=True):
            target = rows[:, piece.span]
            target.zero_() if gradient is None else target.copy_(gradient.flatten(1))
        if flat is not None:
            rows += flat
        return losses.detach().float()

    def _compare(self, expected: torch.Tensor) -> None:
        difference = float((self._gradients[0] - expected).norm() / expected.norm().clamp(min=1e-12))
        if not difference < _TOLERANCE[self._protocol.precision]:
            raise StackError(f"the batched gradient differs from the plain one by {difference:.1e} (relative)")


def _contexts(contexts: Sequence[Context]) -> tuple[Context, Context]:
    """Divides contexts into tensors that all clients share and stacks `[K, ...]` of those of their own."""
    shared, own = {}, {}
    if any(context.keys() != contexts[0].keys() for context in contexts):
        raise StackError("the clients keep different state")
    for name, first in contexts[0].items():
        values = [context[name] for context in contexts]
        if all(value is first for value in values):
            shared[name] = first
        elif any(value.shape != first.shape or value.dtype != first.dtype for value in values):
            raise StackError(f"the clients' {name!r} have different shapes")
        else:
            own[name] = torch.stack(values)
    return shared, own


def _attention(device: torch.device) -> AbstractContextManager[None]:
    """On a CPU the fused kernel of attention has no batching rule."""
    return plain_attention() if device.type == "cpu" else nullcontext()
