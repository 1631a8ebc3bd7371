"""The schema of a suite file, version 1: small, closed, versioned."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fcilbench.spec.protocol import Closed, Evaluation, Limits, Protocol, Runtime, SeedRole
from fcilbench.suite.forms import DatasetEntry, Duration, PartitionEntry, PluginEntry

SCHEMA_VERSION = 1

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


def _count(raw: Any) -> Any:
    return {"count": raw} if type(raw) is int else raw


class SeedPlan(Closed):
    """Repetitions, `{count, base, vary}` or their count alone; the seeds themselves derive from coordinates."""

    count: int = Field(1, ge=1, description="number of repetitions")
    base: int = Field(0, ge=0, description="enters every seed; another base is another set of repetitions")
    vary: list[SeedRole] = Field(["order", "partition", "train"], description="roles that differ between them")

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Adds the short form to the JSON Schema."""
        short_form = {"type": "integer", "minimum": 1, "description": "number of repetitions"}
        return {"anyOf": [short_form, handler.resolve_ref_schema(handler(core))]}


SeedEntry = Annotated[SeedPlan, BeforeValidator(_count)]


class SuiteLimits(Closed):
    """What a cell may cost."""

    wall: Duration | None = Field(None, gt=0.0, description="wall-clock limit of one attempt")
    retries: int = Field(1, ge=0, description="further attempts after `killed` or `oom`")

    def limits(self) -> Limits:
        """Returns the limits as a cell carries them."""
        return Limits(wall_seconds=self.wall, retries=self.retries)


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
    boards: tuple[str, ...] = ("accuracy",)


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a suite file, for editors (`fcilbench schema suite`)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Suite.model_json_schema()}
