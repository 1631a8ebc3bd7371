"""The channel between server and clients: it counts what it delivers, and does not send what a client holds.

The global model travels piece by piece, broadcasts tensor by tensor. The server keeps the last value of each under a
version number that rises when the value changes, and remembers which versions each client holds. Values are compared
once for all clients, exactly, and a client is sent what differs from what it already has:

- a piece of the model that has not changed since the client received it (a frozen part, a constant buffer) is free;
- so is a broadcast tensor that the client has received under the same name with the same value;
- so is a broadcast tensor whose value is the model that the client holds or is just being sent (an anchor, a teacher).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fcilbench.api.message import Layout, Message, Piece, nbytes
from fcilbench.api.stressor import Stressor

COUNTERS = "counters"
"""Name under which integer buffers travel beside the pieces of the model."""
_Versions = dict[str, int]


@dataclass
class _Kept:
    """The last value of a broadcast tensor, its version, and the versions of the model's pieces that equal it."""

    value: torch.Tensor
    version: int
    model: _Versions | None


@dataclass(frozen=True)
class Posted:
    """A broadcast that has been compared with the last one, ready to be sent to any number of clients."""

    message: Message
    versions: _Versions


@dataclass
class Channel:
    """Delivers messages and adds up their bytes.

    Attributes:
        layout: Slices of the model's state vector.
        stressor: Acts on what affected clients upload.
        affected: Ids of these clients.
        counts: Whether messages cross a network; a centralised reference sends nothing.
        bytes_up: Bytes of all uploads so far.
        bytes_down: Bytes of all broadcasts so far, once for each client that receives them.
    """

    layout: Layout
    stressor: Stressor
    affected: frozenset[int] = frozenset()
    counts: bool = True
    bytes_up: int = 0
    bytes_down: int = 0
    _model: torch.Tensor | None = None
    _counters: torch.Tensor | None = None
    _versions: _Versions = field(default_factory=dict)
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _held_model: dict[int, _Versions] = field(default_factory=dict)
    _held: dict[int, _Versions] = field(default_factory=dict)

    # ---------------------------------------------------------------- down

    def publish(self, vector: torch.Tensor, counters: torch.Tensor) -> None:
        """Notes the global model: a piece whose value has changed since the last call gets a new version."""
        if self._model is None or self._counters is None:
            self._model, self._counters = vector.clone(), counters.clone()
            self._versions = dict.fromkeys((COUNTERS, *(piece.name for piece in self.layout.pieces)), 0)
            return
        for piece in self.layout.pieces:
            if not torch.equal(vector[piece.span], self._model[piece.span]):
                self._versions[piece.name] += 1
        if not torch.equal(counters, self._counters):
            self._versions[COUNTERS] += 1
        self._model.copy_(vector)
        self._counters.copy_(counters)

    def post(self, message: Message) -> Posted:
        """Compares a broadcast with the last one: a tensor whose value has changed gets a new version."""
        return Posted(message, {name: self._post(name, tensor) for name, tensor in message.items()})

    def _post(self, name: str, tensor: torch.Tensor) -> int:
        last = self._kept.get(name)
        if last is not None and same(tensor, last.value):
            return last.version
        version = 0 if last is None else last.version + 1
        self._kept[name] = _Kept(tensor.clone(), version, self._versions_of(tensor))
        return version

    def _versions_of(self, tensor: torch.Tensor) -> _Versions | None:
        """Returns the versions of the pieces that make up a tensor `[D]` or `[P]`, if it is the present model."""
        size = len(self.layout.pieces) and tensor.numel()
        if self._model is None or size not in (self.layout.trainable.stop, self.layout.all.stop):
            return None
        if not same(tensor, self._model[:size]):
            return None
        return {piece.name: self._versions[piece.name] for piece in self.layout.pieces if piece.span.stop <= size}

    def down(self, client: int, posted: Posted, model: bool = True) -> Message:
        """Sends a client what it lacks of the global model and of a broadcast.

        Args:
            client: Registered client id.
            posted: The broadcast.
            model: Whether the client needs the present global model; if not, it gets one only if it has none.

        Returns:
            The whole broadcast: with what it held before, the client has all of it.
        """
        if not self.counts:
            return posted.message
        before = self._held_model.get(client)
        if model or before is None:
            self._held_model[client] = dict(self._versions)
            self.bytes_down += self._model_bytes(before or {})
        held = self._held.setdefault(client, {})
        for name, version in posted.versions.items():
            if held.get(name) != version and not self._is_model(name, before, self._held_model[client]):
                self.bytes_down += nbytes({name: posted.message[name]})
            held[name] = version
        return posted.message

    def _model_bytes(self, held: _Versions) -> int:
        assert self._model is not None
        assert self._counters is not None
        news = {p.name: self._model[p.span] for p in self.layout.pieces if held.get(p.name) != self._versions[p.name]}
        if held.get(COUNTERS) != self._versions[COUNTERS]:
            news[COUNTERS] = self._counters
        return nbytes(news)

    def _is_model(self, name: str, *models: _Versions | None) -> bool:
        """Returns whether a broadcast tensor equals one of the models that a client holds."""
        own = self._kept[name].model
        return own is not None and any(model is not None and own.items() <= model.items() for model in models)

    # ---------------------------------------------------------------- up

    def up(
        self, client: int, message: Message, random: Callable[[], np.random.Generator], pieces: Iterable[Piece] = ()
    ) -> dict[str, torch.Tensor] | None:
        """Delivers a client's upload, after the stressor has changed it if the client is affected.

        Args:
            client: Registered client id.
            message: Its update as `delta` `[D]` if it trains, and everything else by name.
            random: Makes the client's stream for the stressor.
            pieces: The pieces of `delta` that travel; the others are 0 on both sides.

        Returns:
            What arrives, or `None` if the client does not answer.

        Raises:
            ValueError: If the stressor changes names, shapes or types.
        """
        sent = dict(message)
        if client in self.affected:
            changed = self.stressor.upload(sent, random())
            if changed is None:
                return None
            if _shapes(changed) != _shapes(message):
                raise ValueError(f"the stressor changed an upload from {_shapes(message)} to {_shapes(changed)}")
            sent = dict(changed)
        if self.counts:
            delta = sent.get("delta")
            parts = {} if delta is None else {piece.name: delta[piece.span] for piece in pieces}
            self.bytes_up += nbytes({name: tensor for name, tensor in sent.items() if name != "delta"}) + nbytes(parts)
        return sent

    # ---------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """Returns everything that a checkpoint needs beside the global model, which must be the published one."""
        kept = {name: [own.value, own.version, own.model] for name, own in self._kept.items()}
        return {
            "bytes": [self.bytes_up, self.bytes_down],
            "versions": self._versions,
            "kept": kept,
            "held_model": self._held_model,
            "held": self._held,
        }

    def restore(self, state: dict[str, Any], vector: torch.Tensor, counters: torch.Tensor) -> None:
        """Takes over a saved state.

        Args:
            state: What `state` returned.
            vector: The published global vector.
            counters: Its counters.
        """
        kept = {name: _Kept(*own) for name, own in state["kept"].items()}
        versions, held_model, held = state["versions"], state["held_model"], state["held"]
        self.bytes_up, self.bytes_down = state["bytes"]
        self._kept, self._versions, self._held_model, self._held = kept, versions, held_model, held
        self._model, self._counters = vector.clone(), counters.clone()


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors have the same type, shape and values."""
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def _shapes(message: Message) -> dict[str, Any]:
    return {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in message.items()}
