"""What is known of a plugin as plain data that JSON can carry."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from pydantic import BaseModel

_SPACE, _SOURCE = "fcilbench_space", "fcilbench_source"


def fields_of(params: type[BaseModel]) -> list[dict[str, Any]]:
    """Returns each hyperparameter: name, type, whether it is required, default, meaning, source, search space."""
    described = []
    for name, field in params.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        described.append(
            {
                "name": name,
                "type": _type_name(field.annotation),
                "required": field.is_required(),
                "default": json.loads(json.dumps(default, default=str)),
                "description": field.description or "",
                "source": extra.get(_SOURCE),
                "space": extra.get(_SPACE),
            }
        )
    return described


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("pathlib.", "")


def as_json(value: Any, what: str) -> Any:
    """Returns a value as it comes back from JSON.

    Raises:
        TypeError: If it is not JSON-compatible.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} is not JSON-compatible: {error}") from error


def origin_of(cls: type) -> str:
    """Returns `file:line` of a class, as far as that is known."""
    try:
        path, line = inspect.getsourcefile(cls), inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return f"{path}:{line}"
