"""The channel between server and clients: it counts what it delivers, and does not send what a client holds.

The global model travels piece by piece, broadcasts tensor by tensor. The server keeps the last value of each under a
version number that rises when the value changes, and remembers which versions each client holds. Values are compared
once for all clients, exactly, and a client is sent what differs from what it already has:

- a piece of the model that has not changed since the client received it (a frozen part, a constant buffer) is free;
- so is a broadcast tensor that the client has received under the same name with the same value;
- so is a broadcast tensor whose value is the model that the client holds or is just being sent (an anchor, a teacher).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from fcilbench.api import Layout, Message, nbytes
from fcilbench.federation.stress import Stress

_MODEL = "model/"
"""Prefix of the model's pieces and counters among the names of broadcast tensors."""


@dataclass
class Channel:
    """Delivers messages and adds up their bytes.

    Attributes:
        stress: The stressor, some clients of which may lag behind the published model.
        counts: Whether messages cross a network; a centralised reference sends nothing.
        bytes_down: Bytes of all broadcasts so far, once for each client that receives them.
    """

    layout: Layout
    stress: Stress = field(default_factory=Stress)
    counts: bool = True
    bytes_up: int = 0
    bytes_down: int = 0
    _last: dict[str, torch.Tensor] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _models: dict[str, dict[str, int]] = field(default_factory=dict)
    """For a broadcast tensor that equals a global model, the versions of that model's pieces."""
    _held: dict[int, dict[str, int]] = field(default_factory=dict)
    _older: list[torch.Tensor] = field(default_factory=list)
    """The last global models, oldest first, as far back as a stale client is behind."""

    @property
    def affected(self) -> frozenset[int]:
        """Ids of the clients that misbehave."""
        return self.stress.affected

    def publish(self, vector: torch.Tensor, counters: torch.Tensor) -> None:
        """Notes the global model that is sent from now on."""
        behind = self.stress.behind
        if self._note(self._pieces(vector, counters)) and behind:
            self._older = [*self._older[-behind:], vector.clone()]

    def model_of(self, client: int, vector: torch.Tensor) -> torch.Tensor:
        """Returns the global model on which a client works: `vector`, the published one, or an older one."""
        return self._older[0] if client in self.affected and self._older else vector

    def post(self, message: Message) -> Message:
        """Notes a broadcast that is sent from now on."""
        for name in self._note(message):
            self._models[name] = self._model_of(message[name])
        return message

    def _pieces(self, vector: torch.Tensor, counters: torch.Tensor) -> dict[str, torch.Tensor]:
        return {f"{_MODEL}counters": counters, **{_MODEL + p.name: vector[p.span] for p in self.layout.pieces}}

    def _note(self, message: Message) -> list[str]:
        """Gives tensors whose value has changed a new version and returns their names."""
        changed = [name for name, tensor in message.items() if not _same(tensor, self._last.get(name))]
        for name in changed:
            self._last[name] = message[name].clone()
            self._versions[name] = self._versions.get(name, -1) + 1
        return changed

    def _model_of(self, tensor: torch.Tensor) -> dict[str, int]:
        """Returns the versions of the present model's pieces if a tensor `[D]` or `[P]` is that model, else nothing."""
        size = tensor.numel()
        if tensor.dim() != 1 or size not in (self.layout.trainable.stop, self.layout.buffers.stop):
            return {}
        pieces = [piece for piece in self.layout.pieces if piece.span.stop <= size]
        if not all(_same(tensor[piece.span], self._last.get(_MODEL + piece.name)) for piece in pieces):
            return {}
        return {_MODEL + piece.name: self._versions[_MODEL + piece.name] for piece in pieces}

    def down(self, client: int, message: Message, model: bool = True) -> Message:
        """Sends a client what it lacks of the global model and of a posted broadcast, and returns the whole broadcast.

        Without `model` the client does not need the present global model: it gets one only if it has none.
        """
        if self.counts:
            held = self._held.setdefault(client, {})
            before = dict(held)
            if model or not any(name.startswith(_MODEL) for name in held):
                self._send(held, [name for name in self._last if name.startswith(_MODEL)])
            models = (before.items(), dict(held).items())
            known = [n for n in message if self._models[n] and any(self._models[n].items() <= own for own in models)]
            held.update({name: self._versions[name] for name in known})
            self._send(held, message)
        return message

    def _send(self, held: dict[str, int], names: Iterable[str]) -> None:
        """Counts the tensors of which a client does not hold the present version, and notes that it now does."""
        news = [name for name in names if held.get(name) != self._versions[name]]
        self.bytes_down += nbytes({name: self._last[name] for name in news})
        held.update({name: self._versions[name] for name in news})

    def up(self, message: Message) -> Message:
        """Delivers what a client uploads."""
        if self.counts:
            self.bytes_up += nbytes(message)
        return message

    def state(self) -> dict[str, Any]:
        """Returns everything that a checkpoint needs beside the global model, which must be the published one."""
        last = {name: tensor for name, tensor in self._last.items() if not name.startswith(_MODEL)}
        totals = [self.bytes_up, self.bytes_down]
        held = {"versions": self._versions, "models": self._models, "held": self._held, "older": self._older}
        return {"bytes": totals, "last": last, "stress": self.stress.state(), **held}

    def restore(self, state: dict[str, Any], vector: torch.Tensor, counters: torch.Tensor) -> None:
        """Takes over what `state` returned when the published model was `vector` with `counters`."""
        versions, models, held, last = state["versions"], state["models"], state["held"], state["last"]
        self.bytes_up, self.bytes_down = state["bytes"]
        self.stress.restore(state["stress"])
        self._versions, self._models, self._held, self._older = versions, models, held, state["older"]
        own = self._pieces(vector, counters) if versions else {}
        self._last = {**{name: tensor.clone() for name, tensor in own.items()}, **last}


def _same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Returns whether two tensors are equal, wherever they are: a checkpoint puts all that it holds on the device."""
    if other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one, other.to(one.device))
