"""Checks of what crosses the wire: well-formed messages, bytes counted a second time, pieces that stay at home."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from fcilbench.api import Client, Message, Samples, Server, Wire, matches, nbytes
from fcilbench.testing.check import CheckFailed, Checks, NotApplicable
from fcilbench.testing.subject import CLIENT_MESSAGES, SERVER_MESSAGES, AggregatorSubject, Wrappers

CHECKS: Checks[AggregatorSubject] = Checks()


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


# ---------------------------------------------------------------- bytes


@dataclass
class _Held:
    """What one client holds: the pieces of the last model it received, of the one before, and broadcast tensors."""

    model: dict[str, torch.Tensor] = field(default_factory=dict)
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def is_model(self, tensor: torch.Tensor, trainable: int) -> bool:
        """Returns whether a tensor is one of the two models, or its trainable part."""
        for model in filter(None, (self.before, self.model)):
            whole = torch.cat([piece for name, piece in model.items() if name != "counters"])
            if _same(whole, tensor) or _same(whole[:trainable], tensor):
                return True
        return False


@dataclass
class _Meter:
    """Counts the bytes of a run beside the runner: of every message the tensors that the receiver does not hold."""

    trains: bool
    up: int = 0
    down: int = 0
    server: Any = None
    wire: Wire = field(default_factory=Wire)
    posted: dict[str, Message] = field(default_factory=dict)
    clients: dict[int, _Held] = field(default_factory=dict)

    def wrappers(self) -> Wrappers:
        """Returns what listens to the hooks of an instance."""
        posts = {hook: partial(self._post, hook) for hook in (*SERVER_MESSAGES, "replay", "wire")}
        return {**posts, "statistics": self._round, "task_statistics": self._task_end}

    def _post(self, hook: str, own: Callable[[Server], Any], server: Server) -> Any:
        self.server, told = server, own(server)
        if hook == "wire":
            self.wire = told
        elif isinstance(told, Samples):  # the benches have images: uint8, with int64 labels
            arrays = {"replay/images": told.inputs, "replay/labels": told.labels}
            self.posted[hook] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        else:
            self.posted[hook] = told or {}
        return told

    def _round(self, own: Callable[[Client], Message], client: Client) -> Message:
        held, trainable = self._receive_model(client.id), self.server.layout.trainable.stop
        for name, tensor in ((name, tensor) for each in self.posted.values() for name, tensor in each.items()):
            if not _same(held.tensors.get(name), tensor) and not held.is_model(tensor, trainable):
                self.down += nbytes({name: tensor})
            held.tensors[name] = tensor.clone()
        if self.trains:
            layout = self.server.layout
            sent = [p for p in layout.select(self.wire.up) if not _still(p, layout, self.wire)]
            self.up += nbytes({p.name: self.server.vector[p.span] for p in sent} | {"counters": self.server.counters})
        message = own(client)
        self.up += nbytes(message)
        return message

    def _task_end(self, own: Callable[[Client], Message], client: Client) -> Message:
        self._receive_model(client.id)
        message = own(client)
        self.up += nbytes(message)
        return message

    def _receive_model(self, client: int) -> _Held:
        """Counts the pieces of the global model that a client lacks; one that does not train needs the first only."""
        held = self.clients.setdefault(client, _Held())
        held.before = held.model
        if self.trains or not held.model:
            server = self.server
            held.model = {piece.name: server.vector[piece.span].clone() for piece in server.layout.pieces}
            held.model["counters"] = server.counters.clone()
            self.down += nbytes({k: v for k, v in held.model.items() if not _same(held.before.get(k), v)})
        return held


def _same(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _still(piece: Any, layout: Any, wire: Wire) -> bool:
    """Returns whether a piece is a parameter that is not trained."""
    return piece.start < layout.trainable.stop and not matches(piece.name, wire.train)


@CHECKS.add
def measured_bytes(subject: AggregatorSubject) -> None:
    """The traffic of a run is the payload of its messages, to the byte.

    Fix: send everything through messages: model, `statistics`, `task_statistics`, `broadcast` and `task_broadcast`.
    """
    meter = _Meter(subject.make().trains)
    cost = subject.run(meter.wrappers(), tasks=(4, 6)).outcome.cost
    if (cost.bytes_up, cost.bytes_down) != (meter.up, meter.down):
        counted = f"the runner counted {cost.bytes_up} bytes up and {cost.bytes_down} down"
        raise CheckFailed(f"{counted}; the messages hold {meter.up} and {meter.down}")


# ---------------------------------------------------------------- pieces that stay at home, and samples that travel


@CHECKS.add
def pieces(subject: AggregatorSubject) -> None:
    """A piece that `wire` does not train, or whose rate is 0, keeps its value on every client.

    Fix: do not write to the network in hooks; change the gradient that `gradient` gets, or the model on the server.
    """
    wires: list[Wire] = []
    rates = subject.make().rates()

    def wire(own: Callable[[Server], Wire], server: Server) -> Wire:
        wires.append(own(server))
        return wires[-1]

    def statistics(own: Callable[[Client], Message], client: Client) -> Message:
        layout = client.net.layout
        for piece in layout.select(["*"]):
            factor = next((factor for pattern, factor in rates.items() if matches(piece.name, [pattern])), 1.0)
            if _still(piece, layout, wires[-1]) or (factor == 0 and piece.start < layout.trainable.stop):
                now, before = client.net.piece(piece.name).detach().flatten(), client.received_model[piece.span]
                if not torch.equal(now, before):
                    raise CheckFailed(f"{piece.name!r} is not to be trained, but client {client.id} changed it")
        return own(client)

    subject.run({"wire": wire, "statistics": statistics}, tasks=(4, 6))
    if not rates and all(each == Wire() for each in wires):
        raise NotApplicable("all pieces are trained at the protocol's rate, and travel")


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

    subject.run({"replay": told}, tasks=(4, 3, 3), rounds=1)
    if not asked:
        raise NotApplicable("the method replays no samples")
