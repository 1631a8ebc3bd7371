"""One local step of several clients at once: a batched call of the loss, rows of one matrix as the clients' models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import vmap

from fcilbench.api.client import Batch, Context
from fcilbench.api.task import Task
from fcilbench.engine.attention import plain_attention
from fcilbench.engine.data import DeviceData
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.frozen import Remembered
from fcilbench.engine.precision import autocast
from fcilbench.engine.step import Draws, GradientHook, LocalStep, Loss, Objective
from fcilbench.spec.protocol import Protocol


class StackError(RuntimeError):
    """These clients cannot be trained together; the message says why. Nothing but the stack has changed."""


@dataclass(frozen=True)
class StackedObjective:
    """What several clients optimise: the same functions of tensors that they share or each has of its own.

    Attributes:
        task: The current task.
        loss: Scalar loss of a client's batch.
        hook: Changes a client's flat gradient `[P]` in place.
        shared: Context that all clients read.
        own: Context of each client, stacked `[K, ...]`.
    """

    task: Task
    loss: Loss
    hook: GradientHook
    shared: Context
    own: Context

    @classmethod
    def of(cls, task: Task, objectives: Sequence[Objective]) -> StackedObjective:
        """Divides the clients' contexts.

        Raises:
            StackError: If their tensors differ in name, shape or type.
        """
        contexts = [objective.context for objective in objectives]
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
        return cls(task, objectives[0].loss, objectives[0].gradient, shared, own)

    def context(self, client: int) -> Context:
        """Returns the context of one client."""
        return {**self.shared, **{name: values[client] for name, values in self.own.items()}}


class StackedStep:
    """The step, with the models, gradients and moments of up to K clients.

    Args:
        model: The resident model; its network is called with the clients' parameters.
        data: Training samples.
        protocol: Learning rate, weight decay, precision, augmentation.
        size: K.

    Attributes:
        vectors: The clients' models `[K, D]`.
        gradients: Their flat gradients `[K, D]`.
    """

    def __init__(self, model: FlatModel, data: DeviceData, protocol: Protocol, size: int) -> None:
        device = model.vector.device
        self.vectors = torch.zeros(size, len(model.vector), device=device)
        self.gradients = torch.zeros_like(self.vectors)
        self.single = LocalStep(model, data, protocol)
        self._members = [nn.Parameter(row) for row in self.vectors]
        self._model, self._data, self._protocol = model, data, protocol
        self._optimiser = torch.optim.AdamW(
            self._members, lr=protocol.lr, weight_decay=0.0, fused=True, capturable=device.type == "cuda"
        )

    def reset(self, start: torch.Tensor) -> None:
        """Makes all clients begin with a vector `[D]` and without moments."""
        self.vectors.copy_(start)
        for state in self._optimiser.state.values():
            for value in state.values():
                value.zero_()
        self._model.network.train()

    def gradient(
        self, objective: StackedObjective, rows: torch.Tensor, draws: Draws, mask: torch.Tensor
    ) -> torch.Tensor:
        """Fills the gradients of the first k clients, hooks included.

        Args:
            objective: What they optimise.
            rows: Positions of their samples, int64 `[k, B]`.
            draws: Random numbers of the augmentation, each `[k, B, ...]`.
            mask: float32 `[k, B]`, 0 for padding.

        Returns:
            Their detached losses, float32 `[k]`.

        Raises:
            StackError: If the loss cannot be batched.
        """
        everything, data = rows.flatten(), self._data
        flat = {name: values.flatten(0, 1) for name, values in draws.items()}
        inputs = data.augmented(everything, flat) if self._protocol.augment else data.plain(everything)
        batch = Batch(inputs.view(*rows.shape, *inputs.shape[1:]), data.labels[rows], mask, objective.task)
        try:
            losses = self._backward(objective, batch, self.single.frozen.of(rows))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise StackError(str(error).strip().splitlines()[0]) from error
        with torch.no_grad():
            for k in range(len(rows)):
                objective.hook(self.gradients[k], self.vectors[k], objective.context(k))
        return losses

    def update(self, decay: torch.Tensor | None, count: int) -> None:
        """Moves the first `count` clients along their gradients."""
        for k, member in enumerate(self._members):
            member.grad = self.gradients[k] if k < count else None  # AdamW passes it by
        if decay is not None:
            self.vectors[:count].mul_(decay)
        self._optimiser.step()

    def _backward(self, objective: StackedObjective, batch: Batch, known: torch.Tensor | None) -> torch.Tensor:
        """Writes the gradient of each client's loss into its row.

        Args:
            objective: What they optimise.
            batch: With a leading dimension of clients.
            known: Features `[k, B, F]` under a frozen backbone.
        """
        count = len(batch.labels)
        model, task, vectors = self._model, batch.task, self.vectors[:count]
        theta = vectors.detach().requires_grad_()
        tensors = {
            piece.name: vectors[:, piece.span].detach().view(count, *piece.shape).requires_grad_()
            for piece in model.layout.pieces
        }

        def loss(tensors: Context, theta: torch.Tensor, rows: tuple[torch.Tensor, ...], own: Context) -> torch.Tensor:
            inputs, labels, mask, *features = rows
            net = model.with_parameters(tensors, theta)
            net = Remembered(net, inputs, *features) if features else net
            return objective.loss(net, Batch(inputs, labels, mask, task), {**objective.shared, **own})

        rows = (batch.inputs, batch.labels, batch.mask, *(() if known is None else (known,)))
        own = {name: values[:count] for name, values in objective.own.items()}
        with autocast(self._protocol.precision, vectors.device), _attention(vectors.device):
            losses = vmap(loss)(tensors, theta, rows, own)
        flat, *gradients = torch.autograd.grad(losses.sum(), [theta, *tensors.values()], allow_unused=True)
        targets = self.gradients[:count]
        for piece, gradient in zip(model.layout.pieces, gradients, strict=True):
            target = targets[:, piece.span]
            target.zero_() if gradient is None else target.copy_(gradient.flatten(1))
        if flat is not None:
            targets += flat
        return losses.detach().float()


def _attention(device: torch.device) -> AbstractContextManager[None]:
    """On a CPU the fused kernel of attention has no batching rule."""
    return plain_attention() if device.type == "cpu" else nullcontext()
