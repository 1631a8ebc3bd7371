"""Hyperparameters of a plugin: values with a type, a range, a meaning, a source and a search space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

SPACE = "fcilbench_space"
"""Key of a field's extra JSON Schema under which its search space stands."""
_SOURCE = "fcilbench_source"

REQUIRED: Any = ...
"""What `default_of` returns for a field without a default."""


class Space(BaseModel):
    """Search space of a hyperparameter.

    Attributes:
        low: Lower bound of a numeric range.
        high: Upper bound of a numeric range.
        log: Whether the range is searched on a logarithmic scale.
        choices: Finite set of values instead of a range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] | None = None


class Params(BaseModel):
    """Base of every plugin's nested `Params` class: closed, frozen, validated, self-documenting."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def Field(  # noqa: N802 -- spelt as pydantic spells it
    default: Any = ..., *, space: Space | None = None, source: str | None = None, **constraints: Any
) -> Any:
    """Declares one hyperparameter.

    Args:
        default: Default value; `...` makes it required.
        space: Search space for `fcilbench tune`; `None` leaves it out of tuning.
        source: Where the default comes from (paper, table, code).
        **constraints: Anything `pydantic.Field` takes: `gt`, `ge`, `le`, `description`, ...

    Example:
        >>> class Params(Params):
        ...     neighbours: int = Field(1, ge=0, description="clients on either side of the ring")
    """
    extra: dict[str, Any] = {}
    if space is not None:
        extra[SPACE] = space.model_dump(mode="json", exclude_none=True)
    if source is not None:
        extra[_SOURCE] = source
    return pydantic.Field(default, json_schema_extra=extra or None, **constraints)


class PresetParams(Params):
    """Hyperparameters with presets: `preset` sets several values at once, which single options override.

    Attributes:
        presets: For each preset the values in which it differs from the declared defaults.

    Example:
        >>> class Mine(PresetParams):
        ...     presets: ClassVar = {"original": {"alpha": 0.5}}
        ...     alpha: float = Field(1.0, ge=0)
        >>> Mine().alpha, Mine(preset="original").alpha, Mine(preset="original", alpha=2.0).alpha
        (1.0, 0.5, 2.0)
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    preset: Literal["default", "original"] = Field(
        "default", description="set of values that single options override: ours, or the method's own paper and code"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, raw: Any) -> Any:
        name = raw.get("preset") if isinstance(raw, dict) else None
        return {**cls.presets[name], **raw} if isinstance(name, str) and name in cls.presets else raw


def search_space(params: type[BaseModel]) -> dict[str, Space]:
    """Returns the declared search space of each tunable hyperparameter, by name."""
    extras = {name: field.json_schema_extra for name, field in params.model_fields.items()}
    return {
        name: Space.model_validate(extra[SPACE])
        for name, extra in extras.items()
        if isinstance(extra, dict) and SPACE in extra
    }


def default_of(field: FieldInfo) -> Any:
    """Returns the default of a model field, or `REQUIRED`."""
    return REQUIRED if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def same(left: Any, right: Any) -> bool:
    """Says whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def non_defaults(model: BaseModel) -> dict[str, Any]:
    """Returns the fields of a model that are not at their default, as plain JSON values.

    Example:
        >>> class Mine(Params):
        ...     alpha: float = Field(1.0)
        ...     beta: float = Field(0.5)
        >>> non_defaults(Mine(alpha=1, beta=2))
        {'beta': 2.0}
    """
    dumped = model.model_dump(mode="json")
    found: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value, default = getattr(model, name), default_of(field)
        if default is REQUIRED or not same(dumped[name], to_jsonable_python(default)):
            found[name] = non_defaults(value) if isinstance(value, BaseModel) else dumped[name]
    return found
