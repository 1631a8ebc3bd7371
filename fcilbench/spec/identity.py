"""What makes two cells the same: SHA-256 of one canonical JSON record of their identity fields.

Raise `IDENTITY_VERSION` whenever the record of an unchanged cell would change; rows of the old version then stay
what they are, and are not taken for results of the new one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from fcilbench.spec.cell import Cell
from fcilbench.spec.protocol import role_of

IDENTITY_VERSION = 1
ENGINE_VERSION = 1
"""Version of federation, engine and vectors; raised by hand when a change of them moves numbers."""


def canonical(cell: Cell) -> dict[str, Any]:
    """Returns the identity record of a cell: its identity fields, recursively, as plain JSON values.

    Raises:
        TypeError: If a field of a model on the way has no role, or a value is not JSON.
        ValueError: If a number is not finite.
    """
    return {"identity_version": IDENTITY_VERSION, "cell": _plain(cell)}


def cell_id(cell: Cell) -> str:
    """Returns the identity of a cell: 64 hexadecimal digits.

    Keys are sorted and separators compact; floats are written by `repr`, the shortest text that reads back equal.
    """
    record = json.dumps(canonical(cell), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(record.encode()).hexdigest()


def unclassified(model: type[BaseModel]) -> list[str]:
    """Returns the fields that have no role, in a model and in every model reachable from it, as `Model.field`."""
    return [
        f"{each.__name__}.{name}"
        for each in reachable(model)
        for name, field in each.model_fields.items()
        if role_of(field) is None
    ]


def reachable(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Returns a model and all models in the annotations of its fields, recursively."""
    found: list[type[BaseModel]] = []
    pending = [model]
    while pending:
        current = pending.pop()
        if current not in found:
            found.append(current)
            for field in current.model_fields.values():
                pending += _models_in(field.annotation)
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


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


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in _identity_fields(type(value))}
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
