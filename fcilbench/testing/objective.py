"""Checks of the client half: a loss that is a function of tensors, and statistics that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fcilbench.api import Aggregator, Batch, Client, Context, Message, Net, Server
from fcilbench.spec.protocol import Runtime
from fcilbench.testing.check import CheckFailed, Checks, NotApplicable
from fcilbench.testing.subject import CLIENT_MESSAGES, AggregatorSubject, Stopped, copies, gap, unwrapped

CHECKS: Checks[AggregatorSubject] = Checks()

_TOLERANCE = 1e-3
"""Relative to the largest entry of a tensor, because sums over batches round differently."""


@dataclass(frozen=True)
class LossCall:
    """One call of a method's loss, in the last task of a run, where penalties on earlier tasks are active.

    `vector` `[D]` lies away from the state vector that was received, so that no penalty is zero.
    """

    aggregator: Aggregator
    loss: Callable[[Net, Batch, Context], torch.Tensor]
    net: Net
    batch: Batch
    context: Context
    vector: torch.Tensor

    def value(self, vector: torch.Tensor, batch: Batch | None = None) -> torch.Tensor:
        """Returns the loss at a state vector; gradients flow into it."""
        return self.loss(self.net.under(vector), batch or self.batch, self.context)

    def gradient(self, vector: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Returns the gradient `[P]` of a value of the loss, after the method's gradient hook."""
        net = self.net.under(vector.detach())
        gradient = torch.autograd.grad(value, vector)[0][: len(net.parameters)].clone()
        with torch.no_grad():
            self.aggregator.gradient(gradient, net, self.context)
        return gradient


def last_loss(subject: AggregatorSubject) -> LossCall:
    """Runs two tasks up to the first local step of the second one, and returns its call of the loss."""
    subject.require_training()
    aggregator, vectors, calls = subject.make(), list[torch.Tensor](), list[LossCall]()

    def broadcast(own: Callable[[Server], Message], server: Server) -> Message:
        vectors.append(server.vector.clone())
        return own(server)

    def loss(own: Callable[..., torch.Tensor], net: Net, batch: Batch, context: Context) -> torch.Tensor:
        if batch.task.index == 0:
            return own(net, batch, context)
        calls.append(LossCall(aggregator, own, net, batch, copies(context), vectors[-1] * 0.9 + 0.01))
        raise Stopped

    try:
        subject.run({"broadcast": broadcast, "loss": loss}, aggregator=aggregator, tasks=(4, 6), rounds=1)
    except Stopped:
        return calls[0]
    raise NotApplicable("no client trains in the second task")


@CHECKS.add
def loss_pure(subject: AggregatorSubject) -> None:
    """The loss is a differentiable scalar; two calls with the same arguments agree and change nothing.

    Fix: compute from `net`, `batch` and `context` alone; no attributes, no in-place operations, no random numbers.
    """
    call = last_loss(subject)
    vector = call.vector.clone().requires_grad_()
    inputs, labels, context = call.batch.inputs.clone(), call.batch.labels.clone(), copies(call.context)
    before = repr(unwrapped(call.aggregator))
    one, two = call.value(vector), call.value(vector)
    if one.shape != () or not one.is_floating_point() or not one.requires_grad:
        raise CheckFailed(f"the loss is {one.dtype} {list(one.shape)}, gradient {one.requires_grad}: not a scalar")
    if not bool(torch.isfinite(one)):
        raise CheckFailed(f"the loss is {float(one.detach())}")
    if not torch.equal(one, two):
        raise CheckFailed(f"two calls give {float(one.detach())} and {float(two.detach())}")
    if not torch.equal(call.gradient(vector, one), call.gradient(vector, two)):
        raise CheckFailed("the gradients of two calls differ")
    if repr(unwrapped(call.aggregator)) != before:
        raise CheckFailed("the loss changed attributes of the plugin")
    if not torch.equal(call.batch.inputs, inputs) or not torch.equal(call.batch.labels, labels):
        raise CheckFailed("the loss changed its batch in place")
    if changed := [name for name, kept in context.items() if not torch.equal(call.context[name], kept)]:
        raise CheckFailed(f"the loss changed {changed[0]!r} of its context in place")


@CHECKS.add
def loss_mask(subject: AggregatorSubject) -> None:
    """Rows of padding (mask 0) do not count in the loss.

    Fix: multiply per-sample losses by `batch.mask` and divide by its sum, as `masked_cross_entropy` does.
    """

    def longer(tensor: torch.Tensor, value: float) -> torch.Tensor:
        return torch.cat([tensor, torch.full_like(tensor[:1], value).expand(2, *tensor.shape[1:])])

    call = last_loss(subject)
    batch, memo = call.batch, call.batch.memo
    inputs, labels, mask = longer(batch.inputs, 3), longer(batch.labels, batch.task.offset), longer(batch.mask, 0)
    memo = None if memo is None else longer(memo, 3)
    padded = replace(batch, inputs=inputs, labels=labels, mask=mask, memo=memo)
    plain, filled = call.value(call.vector), call.value(call.vector, padded)
    if not torch.allclose(plain, filled, rtol=1e-4, atol=1e-6):
        raise CheckFailed(f"the loss is {float(plain):.6g}, with two rows of padding {float(filled):.6g}")


@CHECKS.add
def loss_capture(subject: AggregatorSubject) -> None:
    """Loss and gradient hook never read a value of a tensor in Python, so a GPU can capture the local step.

    Fix: no .item(), no `if` on a tensor, no boolean indexing; use torch.where and masks.
    """
    call = last_loss(subject)
    vector = call.vector.clone().requires_grad_()
    with _NoValues():
        call.gradient(vector, call.value(vector))


_READS = ["item", "tolist", "numpy", "cpu", "nonzero", "masked_select", "unique", "allclose", "equal", "is_nonzero"]
_READS += [f"__{name}__" for name in ("bool", "int", "float", "index", "array", "contains")]


class _NoValues(TorchFunctionMode):
    """Fails the check at the first function whose result or shape depends on a tensor's values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS:
            raise CheckFailed(f"it calls `{name}` of a tensor, which waits for the value")
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in index):
                raise CheckFailed("it indexes with a boolean tensor, whose number of entries is a value")
        return func(*args, **(kwargs or {}))


@CHECKS.add
def query_per_sample(subject: AggregatorSubject) -> None:
    """What `query` returns for a sample does not depend on the others of its batch.

    Fix: no batch statistics, no random numbers; the engine calls it once for each sample, in batches of any size.
    """
    asked: list[torch.Tensor] = []

    def query(own: Callable[..., torch.Tensor | None], net: Net, inputs: torch.Tensor) -> torch.Tensor | None:
        memo = own(net, inputs)
        if memo is not None:
            asked.append(memo)
            apart = torch.cat([each for row in inputs if (each := own(net, row[None])) is not None])
            if memo.shape != apart.shape or not gap(apart.double(), memo.double(), memo.double()) <= _TOLERANCE:
                raise CheckFailed("one by one the samples get other memos than together")
        return memo

    subject.run({"query": query}, tasks=(4, 6), rounds=1)
    if not asked:
        raise NotApplicable("the method asks nothing of the initial network")


# ---------------------------------------------------------------- statistics


@CHECKS.add
def statistics_batch_size(subject: AggregatorSubject) -> None:
    """Statistics do not depend on the batch size in which they are computed.

    Fix: sum over samples, then divide once by their number; give each layer a random stream of its own
    (`client.random(layer)`).
    """
    small, large = (_first_messages(subject, size) for size in (5, 64))
    if not any(message for _, message in large):
        raise NotApplicable("clients send no statistics")
    for (where, one), (_, two) in zip(small, large, strict=True):
        shapes = [{name: list(value.shape) for name, value in message.items()} for message in (one, two)]
        if shapes[0] != shapes[1]:
            raise CheckFailed(f"{where}: {shapes[0]} or {shapes[1]}")
        for name, value in two.items():
            if not (wrong := gap(one[name].double(), value.double(), value.double())) <= _TOLERANCE:
                raise CheckFailed(f"{where}: {name!r} differs by up to {wrong:.2g} of its largest entry")


def _first_messages(subject: AggregatorSubject, size: int) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """Returns each client's messages of the first task."""
    got: list[tuple[str, dict[str, torch.Tensor]]] = []

    def told(own: Callable[[Client], Message], client: Client) -> Message:
        message = own(client)
        if client.task.index == 0:
            got.append((f"client {client.id}", copies(message)))
        return message

    runtime = Runtime(eval_batch_size=size, checkpoint="never")
    subject.run(dict.fromkeys(CLIENT_MESSAGES, told), tasks=(4, 6), rounds=1, runtime=runtime)
    return got


@CHECKS.add
def statistics_leave_model(subject: AggregatorSubject) -> None:
    """A statistics pass leaves parameters, buffers, modes and hooks of the network as they were.

    Fix: work on clones, stay in eval mode, and remove forward hooks in a `finally`.
    """

    def told(hook: str, own: Callable[[Client], Message], client: Client) -> Message:
        network = client.network
        before, shape = copies(network.state_dict()), _shape(network)
        message = own(client)
        if changed := [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]:
            raise CheckFailed(f"`{hook}` changed {changed[0]!r} of the model")
        if _shape(network) != shape:
            raise CheckFailed(f"`{hook}` left the network with other modes, hooks or `requires_grad`")
        return message

    subject.run({hook: partial(told, hook) for hook in CLIENT_MESSAGES}, tasks=(4, 6), rounds=1)


def _shape(network: torch.nn.Module) -> list[tuple[Any, ...]]:
    modules = [
        (module.training, len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks))
        for module in network.modules()
    ]
    return [*modules, tuple(parameter.requires_grad for parameter in network.parameters())]
