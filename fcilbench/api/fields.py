"""Every field of a cell says whether it is part of the cell's identity or only of how it is run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

Role = Literal["identity", "runtime"]
_KEY = "fcilbench_role"


def identity_field(default: Any = ..., **constraints: Any) -> Any:
    """Declares a field that makes two cells different: it enters `cell_id`.

    Args:
        default: Default value; `...` makes the field required.
        **constraints: Anything `pydantic.Field` takes (`ge`, `description`, `default_factory`, ...).
    """
    return _field("identity", default, constraints)


def runtime_field(default: Any = ..., **constraints: Any) -> Any:
    """Declares a field that changes how a cell is run but not what it computes: it stays out of `cell_id`."""
    return _field("runtime", default, constraints)


def role_of(field: FieldInfo) -> Role | None:
    """Returns the declared role of a model field, or `None` if nobody declared one."""
    extra = field.json_schema_extra
    role = extra.get(_KEY) if isinstance(extra, dict) else None
    return role if role in ("identity", "runtime") else None  # type: ignore[return-value]


def _field(role: Role, default: Any, constraints: dict[str, Any]) -> Any:
    if "default_factory" in constraints:
        return Field(json_schema_extra={_KEY: role}, **constraints)
    return Field(default, json_schema_extra={_KEY: role}, **constraints)
