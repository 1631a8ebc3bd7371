"""What a client keeps between its visits: the method's state, samples of its own data, and how large both are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fcilbench.api import Memory, State
from fcilbench.engine import spill
from fcilbench.engine.data import DeviceData
from fcilbench.errors import PluginError

_LABEL = 8
"""Bytes of the label of a kept sample, as it is sent in a replay."""


@dataclass
class ClientRecord:
    """One client between its visits.

    Attributes:
        memory: The samples that it keeps.
        begun: The last task seen when the client last began one; -1: it has not begun.
        nbytes: Bytes of state and memory, as of the end of its last visit.
    """

    memory: Memory
    state: State = field(default_factory=dict)
    begun: int = -1
    nbytes: int = 0

    @classmethod
    def empty(cls, data: DeviceData) -> ClientRecord:
        """Returns the record of a client that has not been visited."""
        none = torch.zeros(0, dtype=torch.int64, device=data.labels.device)
        return cls(Memory(none, none))

    def copy(self) -> ClientRecord:
        """Returns a copy whose tensors are its own."""
        fields = {name: _copied(values) for name, values in self.memory.fields.items()}
        memory = Memory(self.memory.positions, self.memory.labels, fields)
        return ClientRecord(memory, _mapped(self.state, _copied), self.begun, self.nbytes)

    def roll_back(self, before: ClientRecord) -> None:
        """Makes this record what it was; `state` stays the same dict."""
        self.state.clear()
        self.state.update(before.state)
        self.memory, self.begun, self.nbytes = before.memory, before.begun, before.nbytes

    def settle(self, data: DeviceData) -> None:
        """Checks and measures what a visit has left, and spills what does not fit into memory.

        Kept samples count as they were read, with 8 bytes for the label and their fields.

        Raises:
            PluginError: If the state holds something that a checkpoint cannot keep.
        """
        check_state(self.state, "client.state")
        kept = _mapped(self.state, spill.kept)
        self.state.clear()
        self.state.update(kept)
        positions = self.memory.positions.cpu()
        samples = int(data.sample_bytes[positions].sum()) + _LABEL * len(positions)
        self.nbytes = nbytes_of(self.state) + samples + nbytes_of(dict(self.memory.fields))

    def saved(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps."""
        memory = self.memory
        return {"state": self.state, "positions": memory.positions, "fields": dict(memory.fields), "begun": self.begun}

    @classmethod
    def load(cls, saved: Mapping[str, Any], data: DeviceData) -> ClientRecord:
        """Makes anew what `saved` returned."""
        memory = Memory(saved["positions"], data.labels[saved["positions"]], saved["fields"])
        record = cls(memory, dict(saved["state"]), saved["begun"])
        record.settle(data)
        return record


def check_state(value: Any, where: str) -> None:
    """Raises PluginError for something in a state that is no tensor, number, bool, string, list or dict."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int):
                raise PluginError(f"{where} has the key {key!r}, a {type(key).__name__}: use a string")
            check_state(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_state(item, f"{where}[{index}]")
    elif type(value) not in (bool, int, float, str, type(None)) and not isinstance(value, torch.Tensor):
        raise PluginError(
            f"{where} is a {type(value).__name__}, which no checkpoint keeps",
            hint="keep tensors, numbers, strings, None, and lists and dicts of these",
        )


def nbytes_of(value: Any) -> int:
    """Returns the bytes of a client's state: tensors, 8 of a number, 1 of a bool, those of a text as UTF-8."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict | list | tuple):
        return sum(nbytes_of(item) for item in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, str):
        return len(value.encode())
    return {bool: 1, type(None): 0}.get(type(value), 8)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return spill.empty(tensor.shape, tensor).copy_(tensor)


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns a state of the same form with its tensors replaced."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: _mapped(item, function) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, function) for item in value)
    return value
