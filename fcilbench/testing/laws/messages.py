"""Laws of what is sent: tensors of their own, the same for every batch size, from a pass that changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.message import Message
from fcilbench.federation.client import ClientSession
from fcilbench.spec.protocol import Runtime
from fcilbench.testing.law import LawBroken, Laws, NotApplicable
from fcilbench.testing.subject import AggregatorSubject, Watch, gap, tensors

LAWS: Laws[AggregatorSubject] = Laws()

_TOLERANCE = 1e-3
"""Relative to the largest entry of a tensor; sums over batches round differently."""
CLIENT_HOOKS, SERVER_HOOKS = ("statistics", "task_statistics"), ("broadcast", "task_broadcast")


def spy(hooks: tuple[str, ...], told: Callable[[str, Any, Callable[[], Message]], Message]) -> Watch:
    """Returns a watch that hands each call of the hooks to `told(hook, argument, call)`."""

    def watch(aggregator: Aggregator) -> None:
        for hook in hooks:
            own = getattr(aggregator, hook)

            def call(argument: Any, hook: str = hook, own: Callable[[Any], Message] = own) -> Message:
                return told(hook, argument, lambda: own(argument))

            setattr(aggregator, hook, call)

    return watch


@LAWS.law(
    "messages",
    "messages are named tensors without gradient, on the server's device, that do not share the model's memory",
    fix="return `{name: tensor}`; detach, and clone what is a view of the model's parameters",
)
def messages(subject: AggregatorSubject) -> None:
    """Looks at every message of two tasks."""

    def told(hook: str, argument: Any, call: Callable[[], Message]) -> Message:
        message = call()
        if not isinstance(message, Mapping):
            raise LawBroken(f"`{hook}` returned a {type(message).__name__}, not a mapping of tensors")
        vector = argument.net.vector if hook in CLIENT_HOOKS else argument.vector
        for name, value in message.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                raise LawBroken(f"`{hook}` sends {name!r}: a {type(value).__name__}, not a tensor with a name")
            if value.requires_grad:
                raise LawBroken(f"`{hook}` sends {name!r} with its gradient graph")
            if value.device != vector.device:
                raise LawBroken(f"`{hook}` sends {name!r} on {value.device}, the model is on {vector.device}")
            if value.numel() and value.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr():
                raise LawBroken(f"`{hook}` sends {name!r}, a view of the model that the next step overwrites")
        return message

    subject.run(spy(CLIENT_HOOKS + SERVER_HOOKS, told), tasks=(4, 6))


@LAWS.law(
    "statistics-batch-size",
    "statistics do not depend on the batch size in which they are computed",
    fix="sum over samples, then divide once by their number; mind BatchNorm (eval mode) and draws per batch",
)
def statistics_batch_size(subject: AggregatorSubject) -> None:
    """The first task's messages, computed 5 samples at a time and all at once."""
    small, large = (_first_messages(subject, size) for size in (5, 64))
    if not any(message for _, message in large):
        raise NotApplicable("clients send no statistics")
    for (where, one), (_, two) in zip(small, large, strict=True):
        if set(one) != set(two):
            raise LawBroken(f"{where}: tensors {sorted(one)} or {sorted(two)}")
        for name, value in two.items():
            if one[name].shape != value.shape:
                raise LawBroken(f"{where}: {name!r} is {list(one[name].shape)} or {list(value.shape)}")
            wrong = gap(one[name].double(), value.double(), value.double())
            if not wrong <= _TOLERANCE:
                raise LawBroken(f"{where}: {name!r} differs by up to {wrong:.2g} of its largest entry")


def _first_messages(subject: AggregatorSubject, size: int) -> list[tuple[str, dict[str, torch.Tensor]]]:
    got: list[tuple[str, dict[str, torch.Tensor]]] = []

    def told(hook: str, client: ClientSession, call: Callable[[], Message]) -> Message:
        message = call()
        if client.task.index == 0:
            got.append((f"`{hook}` of client {client.id}", tensors(message)))
        return message

    subject.run(
        spy(CLIENT_HOOKS, told), tasks=(4, 6), rounds=1, runtime=Runtime(eval_batch_size=size, checkpoint="never")
    )
    return got


@LAWS.law(
    "statistics-leave-model",
    "a statistics pass leaves parameters, buffers, modes and hooks of the network as they were",
    fix="work on clones, stay in eval mode, and remove forward hooks in a `finally`",
)
def statistics_leave_model(subject: AggregatorSubject) -> None:
    """The model is compared with a copy made before each pass."""

    def told(hook: str, client: ClientSession, call: Callable[[], Message]) -> Message:
        model = client.net
        before, counters, shape = model.vector.clone(), model.read_counters().clone(), _shape(model.network)
        message = call()
        if not torch.equal(model.vector, before):
            parts = {"backbone": model.layout.backbone, "head": model.layout.head, "buffers": model.layout.buffers}
            changed = [name for name, part in parts.items() if not torch.equal(model.vector[part], before[part])]
            raise LawBroken(f"`{hook}` changed the model's {' and '.join(changed)}")
        if not torch.equal(model.read_counters(), counters):
            raise LawBroken(f"`{hook}` changed BatchNorm's counters: it ran the network in training mode")
        if _shape(model.network) != shape:
            raise LawBroken(f"`{hook}` left the network with other modes, hooks or `requires_grad`")
        return message

    subject.run(spy(CLIENT_HOOKS, told), tasks=(4, 6), rounds=1)


def _shape(network: torch.nn.Module) -> list[tuple[Any, ...]]:
    modules = [
        (module.training, len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks))
        for module in network.modules()
    ]
    return [*modules, tuple(parameter.requires_grad for parameter in network.parameters())]
