"""The records that travel with rows, typed: environments, curves and resolved suites.

They come with a folder that anybody may have written, so whoever uses one asks for it here: a record of another shape
is as good as none. `results verify` says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fcilbench.escape import line
from fcilbench.spec.protocol import Scored
from fcilbench.suite.schema import Suite
from fcilbench.tables import cut

Scalar = str | int | float | bool | None


class EnvironmentRecord(BaseModel):
    """An environment as `fcilbench.results.provenance.environment` makes it; other keys hold scalars."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, Scalar]

    python: str | None = None
    cpu: str | None = None
    processor: dict[str, str | list[str]] = {}
    packages: dict[str, str] = {}
    worker: dict[str, Scalar] = {}


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    task: int = Field(ge=0, lt=2**63)
    tasks: int = Field(0, ge=0, lt=2**63)
    seconds: dict[str, float] = {}
    logs: dict[str, float | None] = {}
    accuracy: dict[Scored, list[float]] = {}


class Round(_Record):
    """The record of one round; curves of older versions have no `visits`."""

    event: Literal["round"]
    round: int = Field(ge=0, lt=2**63)
    rounds: int = Field(ge=0, lt=2**63)
    loss: float | None
    bytes_up: int = Field(0, ge=0, lt=2**63)
    bytes_down: int = Field(0, ge=0, lt=2**63)
    visits: int | None = Field(None, ge=0, lt=2**63)


class SelectorBytes(BaseModel):
    """What crossed the network for a selector at a task's end."""

    model_config = ConfigDict(strict=True, extra="forbid")

    bytes_up: int = Field(ge=0, lt=2**63)
    bytes_down: int = Field(ge=0, lt=2**63)


class TaskEnd(_Record):
    """The record of a task's end; curves of older versions do not say what crossed the network there.

    `selectors` holds the bytes of each selector that learns something, by label.
    """

    event: Literal["task"]
    margins: dict[str, Any] | list[Any] | None = None
    bytes_up: int | None = Field(None, ge=0, lt=2**63)
    bytes_down: int | None = Field(None, ge=0, lt=2**63)
    selectors: dict[str, SelectorBytes] = {}


def read_event(record: Mapping[str, Any]) -> Round | TaskEnd:
    """Returns a record of a curve.

    Raises:
        ValueError: If it is none (pydantic's ValidationError is one).
    """
    return (TaskEnd if record.get("event") == "task" else Round).model_validate(record)


def resolved_suite(record: Mapping[str, Any]) -> Suite:
    """Returns a resolved suite as a suite.

    Raises:
        ValueError: If it is none (pydantic's ValidationError is one).
    """
    grid = record.get("grid")
    if isinstance(grid, Mapping) and grid.get("zip") == []:  # a resolved suite says so if no axes are zipped
        record = {**record, "grid": {axis: entries for axis, entries in grid.items() if axis != "zip"}}
    return Suite.model_validate(record)


def reason(error: Exception) -> str:
    """Returns what an error says, in one line; of a value that has the wrong type, where it is."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        return cut(line(f"{place}: {first['msg']}" if place else first["msg"]), 200)
    return cut(line(error) or type(error).__name__, 200)
