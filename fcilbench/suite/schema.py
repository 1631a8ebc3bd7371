"""The schema of a suite file, version 1: small, closed, versioned; short forms and what is wrong in a user's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from fcilbench.errors import nearest
from fcilbench.registry.validation import sentence
from fcilbench.spec.protocol import Closed, Evaluation, Partition, Protocol, Runtime, SeedRole
from fcilbench.suite.problems import Finding, KeyPath

PluginAxis = Literal["dataset", "backbone", "aggregator", "stress"]
Axis = Literal["dataset", "backbone", "partition", "aggregator", "stress"]

AXES: tuple[Axis, ...] = get_args(Axis)
"""Axes of the grid in the order of the product; the seed is the innermost."""

PLUGIN_KINDS: dict[PluginAxis, str] = {
    "dataset": "datasets",
    "backbone": "backbones",
    "aggregator": "aggregators",
    "stress": "stressors",
}
"""Kind of plugin on each axis."""

PARTITION_KEYS = ("dirichlet", "quantity", "kind", "value", "min_samples")
"""Keys that a partition may have in a suite."""

_MOST_CLASSES = 1_000_000


def _printable(label: str) -> str:
    if not label.isprintable():
        raise ValueError(f"{label!r} holds characters that cannot be printed")
    return label


Label = Annotated[str, Field(pattern=r"^[^\s,:][^,:]*$", max_length=100), AfterValidator(_printable)]


class PluginEntry(Closed):
    """One entry of an axis: the name of a plugin, or `{use: name, label: ..., <parameters>}`."""

    model_config = ConfigDict(extra="allow")

    use: str = Field(min_length=1, description="name of the plugin, `name` or `dist/name`")
    label: Label | None = Field(None, description="what boards call it")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, raw: Any) -> Any:
        return {"use": raw} if isinstance(raw, str) else raw

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
    if not counts or not all(type(count) is int and 1 <= count <= _MOST_CLASSES for count in counts):
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


def _partition_schema(required: str, **properties: Any) -> dict[str, Any]:
    properties["min_samples"] = {"type": "integer", "minimum": 0}
    return {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}


_POSITIVE = {"type": "number", "exclusiveMinimum": 0}

PartitionEntry = Annotated[
    Partition,
    BeforeValidator(_partition),
    WithJsonSchema(
        {
            "description": "`iid`, `{dirichlet: beta}` or `{quantity: beta}`",
            "anyOf": [
                {"const": "iid"},
                _partition_schema("dirichlet", dirichlet=_POSITIVE),
                _partition_schema("quantity", quantity=_POSITIVE),
                _partition_schema(
                    "kind",
                    kind={"enum": ["iid", "dirichlet", "quantity"]},
                    value={**_POSITIVE, "type": ["number", "null"]},
                ),
            ],
        }
    ),
]


class Grid(Closed):
    """The axes; cells are their product, except for axes that are zipped."""

    dataset: tuple[DatasetEntry, ...] = Field(min_length=1)
    backbone: tuple[PluginEntry, ...] = Field(min_length=1)
    partition: tuple[PartitionEntry, ...] = Field(min_length=1)
    aggregator: tuple[PluginEntry, ...] = Field(min_length=1)
    stress: tuple[PluginEntry, ...] = Field((PluginEntry(use="none"),), min_length=1)
    zip: tuple[Axis, ...] = Field((), description="axes that advance together, entry by entry, instead of a product")


Conditions = Annotated[dict[str, Any], Field(min_length=1)]


class TunedRule(Closed):
    """Values for the cells that meet all conditions; the last rule that sets a key wins."""

    where: Conditions = Field(description="conditions: an axis or `axis.parameter`, with one value or a list of them")
    set: Conditions = Field(description="values: `axis.parameter`, `protocol.key`, or a bare key for the aggregator")


class ExcludeRule(Closed):
    """Cells that the suite leaves out, with the reason."""

    model_config = ConfigDict(extra="allow")

    because: str = Field(min_length=1, description="why these cells make no sense or are not wanted")

    @property
    def where(self) -> dict[str, Any]:
        """The conditions."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _not_everything(self) -> ExcludeRule:
        if not self.model_extra:
            raise ValueError("no condition: it would exclude every cell")
        return self


class SeedPlan(Closed):
    """Repetitions, `{count, base, vary}` or their count alone; the seeds themselves derive from coordinates."""

    count: int = Field(1, ge=1, le=100_000, description="number of repetitions")
    base: int = Field(0, ge=0, lt=2**63, description="enters every seed; another base is another set of repetitions")
    vary: list[SeedRole] = Field(["order", "partition", "train"], description="roles that differ between them")

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Adds the short form to the JSON Schema."""
        short_form = {"type": "integer", "minimum": 1, "description": "number of repetitions"}
        return {"anyOf": [short_form, handler.resolve_ref_schema(handler(core))]}


SeedEntry = Annotated[SeedPlan, BeforeValidator(lambda raw: {"count": raw} if type(raw) is int else raw)]

_DURATION = re.compile(r"^(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?$", re.ASCII)


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
                _POSITIVE,
                {"type": "string", "pattern": r"^(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?$", "minLength": 2},
            ],
            "description": "seconds, or 90s, 30m, 2h, 1h30m",
        }
    ),
]


class SuiteLimits(Closed):
    """What a cell may cost."""

    wall: Duration | None = Field(None, gt=0.0, le=366 * 86_400.0, description="wall-clock limit of one attempt")
    retries: int = Field(1, ge=0, le=100, description="further attempts after `killed` or `oom`")


class Suite(Closed):
    """A benchmark suite: what is compared, on what, how often, and what it may cost."""

    fcilbench: Literal[1] = Field(description="version of this schema")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="short name for boards and tracking")
    description: str = ""
    extends: str | None = Field(None, description="suite that this one refines, relative to this file")
    protocol: Protocol = Protocol()
    grid: Grid
    tuned: tuple[TunedRule, ...] = ()
    exclude: tuple[ExcludeRule, ...] = ()
    seeds: SeedEntry = SeedPlan()
    evaluate: Evaluation = Evaluation()
    limits: SuiteLimits = SuiteLimits()
    runtime: Runtime = Runtime()
    boards: tuple[str, ...] = Field(("accuracy",), max_length=100)


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a suite file, for editors (`fcilbench schema suite`)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Suite.model_json_schema()}


def schema_findings(error: ValidationError, values: Any) -> list[Finding]:
    """Returns one finding for each value that the schema refuses.

    Args:
        error: What pydantic found.
        values: The suite that was validated.
    """
    details = error.errors(include_url=False)
    misspelt = {_meant(detail) for detail in details if detail["type"] == "extra_forbidden"}
    findings = []
    for detail in details:
        path, kind = tuple(detail["loc"]), detail["type"]
        inside = f" in {'.'.join(map(str, path[:-1]))}" if path[:-1] else ""
        if kind == "missing" and path not in misspelt:
            findings.append(Finding(sentence(detail, ()) + inside, path))
        elif kind == "extra_forbidden":
            findings.append(Finding(sentence(detail, _legal_keys(path[:-1])) + inside, path, key=True))
        elif kind == "too_short":  # a list does not become empty because its entries are invalid
            if not any(tuple(each["loc"][: len(path)]) == path for each in details if each is not detail):
                findings.append(Finding(f"{'.'.join(map(str, path))}: must not be empty", path))
        elif kind != "missing":
            findings.append(Finding(sentence(detail, ()), _written(path, values)))
    return findings


def _written(path: KeyPath, values: Any) -> KeyPath:
    """Returns the path of a value as the suite writes it: a partition's value stands under its kind."""
    if path[:2] != ("grid", "partition") or path[-1] != "value":
        return path
    raw = values["grid"]["partition"][path[2]]
    return next(((*path[:3], kind) for kind in ("dirichlet", "quantity") if kind in raw), path)


def _meant(detail: ErrorDetails) -> KeyPath:
    """Returns the path of the key that a misspelt one stands for: that one is not missing."""
    path = detail["loc"]
    near = re.search(r"did you mean '([^']*)'", nearest(str(path[-1]), _legal_keys(path[:-1])))
    return (*path[:-1], near[1] if near else path[-1])


def _legal_keys(path: Sequence[str | int]) -> list[str]:
    """Returns the keys that a map of the suite may have."""
    current: Any = Suite
    for step in path:
        if isinstance(step, int):
            current = next(iter(get_args(current)), None)
            current = getattr(current, "__origin__", current)  # without its `Annotated`
        else:
            fields = getattr(current, "model_fields", {})
            current = fields[step].annotation if step in fields else None
    return list(PARTITION_KEYS if current is Partition else getattr(current, "model_fields", ()))
