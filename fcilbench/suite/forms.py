"""Values of a suite that have a short form: plugin entries, partitions, durations."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fcilbench.errors import nearest
from fcilbench.spec.protocol import Closed, Partition

_LABEL = r"^[^\s,:][^,:]*$"


def _entry(raw: Any) -> Any:
    return {"use": raw} if isinstance(raw, str) else raw


class PluginEntry(Closed):
    """One entry of an axis: the name of a plugin, or `{use: name, label: ..., <parameters>}`."""

    model_config = ConfigDict(extra="allow")

    use: str = Field(min_length=1, description="name of the plugin, `name` or `dist/name`")
    label: str | None = Field(None, pattern=_LABEL, description="what boards call it")

    _shorthand = model_validator(mode="before")(_entry)

    @property
    def options(self) -> dict[str, Any]:
        """The parameters as they are written."""
        return dict(self.model_extra or {})

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Adds the short form to the JSON Schema."""
        short_form = {"type": "string", "minLength": 1, "description": "name of the plugin"}
        return {"anyOf": [short_form, handler.resolve_ref_schema(handler(core))]}


def _tasks(raw: Any) -> Any:
    counts = raw if isinstance(raw, list) else [raw]
    if not counts or not all(type(count) is int and count >= 1 for count in counts):
        raise ValueError("must be a number of equal tasks, or a list of classes per task, each at least 1")
    return raw


class DatasetEntry(PluginEntry):
    """A data set with its split into tasks."""

    tasks: Annotated[int | list[int] | None, BeforeValidator(_tasks)] = Field(
        None, description="number of equal tasks, or classes per task; default: the data set's own"
    )


def _partition(raw: Any) -> Any:
    kinds = ("iid", "dirichlet", "quantity")
    if isinstance(raw, str) and raw != "iid":
        if raw in kinds:
            raise ValueError(f"{raw} takes a concentration: {{{raw}: 0.5}}")
        raise ValueError(f"unknown partition {raw!r}{nearest(raw, kinds)}")
    return raw


PartitionEntry = Annotated[
    Partition,
    BeforeValidator(_partition),
    WithJsonSchema(
        {
            "description": "`iid`, `{dirichlet: beta}` or `{quantity: beta}`",
            "anyOf": [
                {"const": "iid"},
                *(
                    {
                        "type": "object",
                        "properties": {
                            kind: {"type": "number", "exclusiveMinimum": 0},
                            "min_samples": {"type": "integer", "minimum": 0},
                        },
                        "required": [kind],
                        "additionalProperties": False,
                    }
                    for kind in ("dirichlet", "quantity")
                ),
                {
                    "type": "object",
                    "properties": {
                        "kind": {"enum": ["iid", "dirichlet", "quantity"]},
                        "value": {"type": ["number", "null"], "exclusiveMinimum": 0},
                        "min_samples": {"type": "integer", "minimum": 0},
                    },
                    "required": ["kind"],
                    "additionalProperties": False,
                },
            ],
        }
    ),
]


_DURATION = re.compile(r"^(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?$")


def _duration(raw: Any) -> Any:
    """Returns seconds from a number of seconds, or from `90s`, `30m`, `2h`, `1h30m`."""
    if not isinstance(raw, str):
        return raw
    match = _DURATION.match(raw)
    if not raw or match is None:
        raise ValueError(f"{raw!r} is not a duration; write seconds, or 90s, 30m, 2h, 1h30m")
    return sum(float(match[unit] or 0) * size for unit, size in (("h", 3600), ("m", 60), ("s", 1)))


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?$", "minLength": 2},
            ],
            "description": "seconds, or 90s, 30m, 2h, 1h30m",
        }
    ),
]
