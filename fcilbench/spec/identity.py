"""The identity of a cell: SHA-256 of a canonical JSON record of its identity fields.

A field at its default is not in the record, so a new option with a neutral default changes no identity. Changing a
default demands a new version: of the plugin, or `PROTOCOL_VERSION` for `fcilbench.spec.protocol`. A test compares all
defaults with `tests/spec/defaults.json`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from fcilbench.spec.cell import Cell
from fcilbench.spec.params import REQUIRED, default_of, same
from fcilbench.spec.protocol import role_of

IDENTITY_VERSION = 2
"""Raise it when the record of an unchanged cell would look different."""

PROTOCOL_VERSION = 1
"""Raise it when a default or the meaning of a field in `fcilbench.spec.protocol` changes."""

ENGINE_VERSION = 2
"""Raise it when federation, engine or vectors compute other numbers; the golden runs show that."""


def canonical(cell: Cell, engine: int = ENGINE_VERSION) -> dict[str, Any]:
    """Returns the identity record of a cell: its identity fields that are not at their default, as JSON values.

    `engine` is the engine version that computed the cell, if it is not that of this checkout.

    Raises:
        TypeError: If a field is declared neither as identity nor as runtime, or a value is not JSON.
        ValueError: If a number is not finite.
    """
    versions = {"identity": IDENTITY_VERSION, "protocol": PROTOCOL_VERSION, "engine": engine}
    if isinstance(cell.tasks, tuple) and 1 in cell.tasks:
        versions["one_class_tasks"] = 2  # `MostConfident` never answered with them before
    return {"versions": versions, "cell": _plain(cell)}


def cell_id(cell: Cell, engine: int = ENGINE_VERSION) -> str:
    """Returns the identity of a cell: 64 hexadecimal digits; the arguments are those of `canonical`.

    Keys are sorted and separators compact; floats are written by `repr`, the shortest text that reads back equal.
    """
    return record_id(canonical(cell, engine))


def record_id(record: Mapping[str, Any]) -> str:
    """Returns the identity of a cell with this record, see `cell_id`."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _identity_fields(model: type[BaseModel]) -> tuple[str, ...]:
    names = []
    for name, field in model.model_fields.items():
        role = role_of(field)
        if role is None:
            raise TypeError(f"{model.__name__}.{name} is neither an identity nor a runtime field")
        if role == "identity":
            names.append(name)
    return tuple(names)


@functools.cache
def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the default of each identity field that has one, as a record would hold it."""
    defaults = {name: default_of(model.model_fields[name]) for name in _identity_fields(model)}
    return {name: _plain(default) for name, default in defaults.items() if default is not REQUIRED}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        model = type(value)
        fields, defaults = {name: _plain(getattr(value, name)) for name in _identity_fields(model)}, _defaults(model)
        return {name: each for name, each in fields.items() if not same(each, defaults.get(name, REQUIRED))}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys must be strings in an identity: {list(value)}")
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be part of an identity")
        return value + 0.0  # -0.0 is 0.0
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of an identity")
