"""Checks of the client half: messages and their bytes, replay, statistics and the loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from fcilbench.api import Aggregator, Batch, Client, Context, Message, Net, Samples, Server, Wire, nbytes
from fcilbench.testing.check import CheckFailed, Checks, NotApplicable
from fcilbench.testing.subject import (
    CLIENT_MESSAGES,
    SERVER_MESSAGES,
    AggregatorSubject,
    Stopped,
    copies,
    gap,
    same_tree,
)

CHECKS: Checks[AggregatorSubject] = Checks()

_TOLERANCE = 1e-3
"""Relative to the largest entry of a tensor, because sums over batches round differently."""


@CHECKS.add
def messages(subject: AggregatorSubject) -> None:
    """Messages are named tensors without gradient, on the server's device, that do not share the model's memory.

    Fix: return `{name: tensor}`; detach, and clone what is a view of the model's parameters.
    """

    def told(hook: str, own: Callable[[Any], Message], asked: Any) -> Message:
        message = own(asked)
        model = [asked.vector] if hook in SERVER_MESSAGES else list(asked.network.state_dict().values())
        if not isinstance(message, Mapping):
            raise CheckFailed(f"`{hook}` returned a {type(message).__name__}, not a mapping of tensors")
        for name, value in message.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                raise CheckFailed(f"`{hook}` sends {name!r}: a {type(value).__name__}, not a tensor with a name")
            if value.requires_grad:
                raise CheckFailed(f"`{hook}` sends {name!r} with its gradient graph")
            if value.device != model[0].device:
                raise CheckFailed(f"`{hook}` sends {name!r} on {value.device}, the model is on {model[0].device}")
            if value.numel() and _address(value) in map(_address, model):
                raise CheckFailed(f"`{hook}` sends {name!r}, a view of the model that is overwritten later")
        return message

    subject.run({hook: partial(told, hook) for hook in CLIENT_MESSAGES + SERVER_MESSAGES}, tasks=(4, 6))


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@CHECKS.add
def measured_bytes(subject: AggregatorSubject) -> None:
    """The bytes that clients upload are counted, and nothing else: encoded updates, counters and statistics.

    Fix: send everything through `statistics` and `task_statistics`; a method without a network names the check in
    `breaks`.
    """
    sent, model, plain = [0], [0], subject.keeps("encode")

    def wire(own: Callable[[Server], Wire], server: Any) -> Wire:
        found, layout = own(server), server.layout
        trained = set(layout.select(found.train))
        pieces = [p for p in layout.select(found.up) if p in trained or p.start >= layout.buffers.start]
        model[0] = nbytes({"": server.counters})
        model[0] += nbytes({piece.name: server.vector[piece.span] for piece in pieces}) if plain else 0
        return found

    def encode(own: Callable[[Message, Client], Message], update: Message, client: Client) -> Message:
        message = own(update, client)
        sent[0] += 0 if plain else nbytes(message)
        return message

    def told(hook: str, own: Callable[[Client], Message], client: Client) -> Message:
        message = own(client)
        sent[0] += nbytes(message) + (model[0] if hook == "statistics" and subject.cls.trains else 0)
        return message

    wrappers = {hook: partial(told, hook) for hook in CLIENT_MESSAGES}
    counted = subject.run({"wire": wire, "encode": encode, **wrappers}, tasks=(4, 6)).outcome.cost.bytes_up
    if counted != sent[0]:
        raise CheckFailed(f"the runner counted {counted} bytes up; the clients' messages hold {sent[0]}")


@CHECKS.add
def encoding(subject: AggregatorSubject) -> None:
    """`encode` returns named tensors, `decode` floats with the update's names and shapes; neither changes anything.

    Fix: clone what is changed; keep what a client remembers in `client.state`; `decode` is a function of the message:
    what needs all uploads is done in `aggregate`.
    """
    if subject.keeps("encode", "decode"):
        raise NotApplicable("the method sends its update as it is")

    def encode(own: Callable[[Message, Client], Message], update: Message, client: Client) -> Message:
        before = copies(update)
        message = own(update, client)
        for name, value in message.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.requires_grad:
                raise CheckFailed(f"`encode` sends {name!r}: a {type(value).__name__}, or one with its gradient graph")
        if changed := [name for name, kept in before.items() if not torch.equal(update[name], kept)]:
            raise CheckFailed(f"`encode` changed {changed[0]!r} of the update in place")
        return message

    def decode(own: Callable[[Message, Server], Message], message: Message, server: Server) -> Message:
        before, state, vector = copies(message), copy.deepcopy(server.state), server.vector.clone()
        one, two = own(message, server), own(message, server)
        if changed := [name for name, kept in before.items() if not torch.equal(message[name], kept)]:
            raise CheckFailed(f"`decode` changed {changed[0]!r} of the message in place")
        if not same_tree(server.state, state) or not torch.equal(server.vector, vector):
            raise CheckFailed("`decode` changed the server: an upload that is not merged would have, too")
        for name, value in one.items():
            if not torch.equal(value, two[name]):
                raise CheckFailed(f"two calls of `decode` give other values of {name!r}")
            if not bool(torch.isfinite(value).all()):
                raise CheckFailed(f"`decode` gives values of {name!r} that are not finite")
        return one

    subject.run({"encode": encode, "decode": decode}, tasks=(4, 6))


@CHECKS.add
def replay(subject: AggregatorSubject) -> None:
    """Replay samples are uint8 images or texts with labels of classes seen, and the same if asked for again.

    Fix: build them in `end_task` or `begin_task`, keep them in `server.state`, and return them from `replay`.
    """
    asked: list[Samples] = []

    def told(own: Callable[[Server], Samples | None], server: Server) -> Samples | None:
        one, two = own(server), own(server)
        if one is None:
            return None
        asked.append(one)
        if two is None or not (np.array_equal(one.inputs, two.inputs) and np.array_equal(one.labels, two.labels)):
            raise CheckFailed(f"two calls in task {server.task.index} return different samples")
        if one.inputs.dtype not in (np.uint8, object):
            raise CheckFailed(f"the inputs are {one.inputs.dtype} {list(one.inputs.shape)}")
        if len(one) and not (one.labels.min() >= 0 and one.labels.max() < server.tasks[-1].seen):
            raise CheckFailed(f"labels {one.labels.min()}..{one.labels.max()} leave 0..{server.tasks[-1].seen - 1}")
        return one

    if not subject.keeps("replay"):
        subject.run({"replay": told}, tasks=(4, 3, 3), rounds=1)
    if not asked:
        raise NotApplicable("the method replays no samples")


# ---------------------------------------------------------------- what is computed of samples


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

    if not subject.keeps("query"):
        subject.run({"query": query}, tasks=(4, 6), rounds=1)
    if not asked:
        raise NotApplicable("the method asks nothing of the initial network")


@CHECKS.add
def statistics_batch_size(subject: AggregatorSubject) -> None:
    """Statistics do not depend on the batch size in which they are computed.

    Fix: sum over samples, then divide once by their number; give each layer a random stream of its own
    (`client.random(layer)`).
    """
    messages: list[Message] = []

    def told(own: Callable[[Client], Message], client: Any) -> Message:
        before, size = client.record.copy(), client.batch_size
        client.batch_size = 5
        small = own(client)
        client.batch_size = size
        client.record.roll_back(before)
        large = own(client)
        messages.append(large)
        shapes = [{name: list(value.shape) for name, value in message.items()} for message in (small, large)]
        if shapes[0] != shapes[1]:
            raise CheckFailed(f"client {client.id}: {shapes[0]} or {shapes[1]}")
        for name, value in large.items():
            if not (wrong := gap(small[name].double(), value.double(), value.double())) <= _TOLERANCE:
                raise CheckFailed(f"client {client.id}: {name!r} differs by up to {wrong:.2g} of its largest entry")
        return large

    if not subject.keeps(*CLIENT_MESSAGES):
        subject.run(dict.fromkeys(CLIENT_MESSAGES, told), tasks=(4, 6), rounds=1)
    if not any(messages):
        raise NotApplicable("clients send no statistics")


# ---------------------------------------------------------------- the loss


@dataclass(frozen=True)
class _Call:
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


def _last_call(subject: AggregatorSubject) -> _Call:
    """Runs two tasks up to the first local step of the second one, and returns its call of the loss."""
    subject.require_training()
    aggregator, vectors, calls = subject.make(), list[torch.Tensor](), list[_Call]()

    def broadcast(own: Callable[[Server], Message], server: Server) -> Message:
        vectors.append(server.vector.clone())
        return own(server)

    def loss(own: Callable[..., torch.Tensor], net: Net, batch: Batch, context: Context) -> torch.Tensor:
        if batch.task.index == 0:
            return own(net, batch, context)
        calls.append(_Call(aggregator, own, net, batch, copies(context), vectors[-1] * 0.9 + 0.01))
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
    call = _last_call(subject)
    vector = call.vector.clone().requires_grad_()
    arguments = {"inputs": call.batch.inputs, "labels": call.batch.labels, **call.context}
    for number, memory in enumerate(call.batch.memories):
        arguments |= {f"memories[{number}].inputs": memory.inputs, f"memories[{number}].labels": memory.labels}
        arguments |= {f"memories[{number}].fields[{name!r}]": kept for name, kept in memory.fields.items()}
    before = copies(arguments)
    one, two = call.value(vector), call.value(vector)
    if one.shape != () or not one.is_floating_point() or not one.requires_grad:
        raise CheckFailed(f"the loss is {one.dtype} {list(one.shape)}, gradient {one.requires_grad}: not a scalar")
    if not torch.isfinite(one) or not torch.equal(one, two):
        raise CheckFailed(f"two calls give {float(one.detach())} and {float(two.detach())}")
    if not torch.equal(call.gradient(vector, one), call.gradient(vector, two)):
        raise CheckFailed("the gradients of two calls differ")
    if changed := [name for name, kept in before.items() if not _same(arguments[name], kept)]:
        raise CheckFailed(f"the loss changed {changed[0]!r} of its batch or context in place")


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Says whether two tensors are equal; NaN equals NaN."""
    if one.is_floating_point():
        one, other = one.nan_to_num(), torch.where(one.isnan() == other.isnan(), other.nan_to_num(), torch.nan)
    return torch.equal(one, other)


@CHECKS.add
def loss_mask(subject: AggregatorSubject) -> None:
    """Rows of padding (mask 0) do not count in the loss.

    Fix: multiply per-sample losses by `batch.mask` and divide by its sum, as `masked_cross_entropy` does.
    """

    def longer(tensor: torch.Tensor, value: float) -> torch.Tensor:
        return torch.cat([tensor, torch.full_like(tensor[:1], value).expand(2, *tensor.shape[1:])])

    def fill(batch: Batch) -> Batch:
        memo, random = (None if x is None else longer(x, value) for x, value in ((batch.memo, 3), (batch.random, 0.5)))
        slices = None if batch.slices is None else torch.cat([batch.slices, batch.slices[:1].expand(2, -1)])
        return replace(
            batch,
            inputs=longer(batch.inputs, 3),
            labels=torch.cat([batch.labels, batch.labels[:1].expand(2)]),
            mask=longer(batch.mask, 0),
            memo=memo,
            random=random,
            slices=slices,
            fields={name: longer(values, 3) for name, values in batch.fields.items()},
            memories=tuple(fill(memory) for memory in batch.memories),
        )

    call = _last_call(subject)
    padded = fill(call.batch)
    plain, filled = call.value(call.vector), call.value(call.vector, padded)
    if not torch.allclose(plain, filled, rtol=1e-4, atol=1e-6):
        raise CheckFailed(f"the loss is {float(plain):.6g}, with two rows of padding {float(filled):.6g}")


@CHECKS.add
def client_memory(subject: AggregatorSubject) -> None:
    """Samples that a client draws of those that it keeps enter the loss.

    Fix: add a term over `batch.memory` to the loss (it is `None` while a client keeps nothing), or return `None` from
    `client_replay` if the memory serves `statistics` alone.
    """
    call = _last_call(subject)
    if not call.batch.memories:
        raise NotApplicable("clients draw nothing of samples that they keep")
    others = tuple(replace(memory, inputs=0.5 * memory.inputs) for memory in call.batch.memories)
    if torch.equal(call.value(call.vector), call.value(call.vector, replace(call.batch, memories=others))):
        raise CheckFailed(f"with other inputs of {len(others[0].labels)} kept samples the loss is the same")


@CHECKS.add
def loss_capture(subject: AggregatorSubject) -> None:
    """Loss and gradient hook never read a value of a tensor in Python, so a GPU can capture the local step.

    Fix: no .item(), no `if` on a tensor, no boolean indexing; use torch.where and masks.
    """
    call = _last_call(subject)
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
