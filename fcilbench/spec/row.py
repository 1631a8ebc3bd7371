"""The schema of a row, the record of one planned cell with or without a result.

Version 2 added `suite_digest` and `code.engine_version`, version 3 `module`, `rounds` and `tasks` of the cost,
version 4 its `visits`, version 5 `roles`, `selectors`, `client_state` and `client_state_mean`, version 6 `saved_s` of
the cost. Rows of older versions are read and written with their version.
"""

from __future__ import annotations

import hashlib
import math
from datetime import UTC
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from fcilbench.errors import UsageError
from fcilbench.spec.cell import PLUGIN_KINDS, SELECTORS, PluginKind, Roles
from fcilbench.spec.outcome import Cost, Value
from fcilbench.spec.protocol import SELECTOR_LABEL, Closed, Scored, SeedRole

SCHEMA_VERSION = 6
ROLES_SINCE = 5
"""Schema version of the first rows that say what role their method has."""

Status = Literal["ok", "failed", "oom", "timeout", "killed", "skipped", "interrupted"]
STATUSES: tuple[Status, ...] = get_args(Status)

Utc = Annotated[AwareDatetime, AfterValidator(lambda moment: moment.astimezone(UTC))]


class Failure(Closed):
    """Why a cell has no result.

    Attributes:
        kind: The cause: `plugin`, `internal`, `prerequisite`, `diverged` or the status (`oom`, `timeout`...).
        type: Class name of the exception, or the signal or limit that ended the cell.
        message: One line.
        traceback_path: Traceback file, relative to the store's folder.
    """

    kind: str
    type: str
    message: str
    traceback_path: str | None = None


class Code(Closed):
    """The source code that computed a row.

    Attributes:
        git_sha: Commit of the fcilbench checkout; `None` when it is an installed package.
        dirty: Whether the package differed from that commit; `None` without a commit.
        digest: Digest of the four plugins' code digests (`code_digest`); another value makes the row stale.
        engine_version: `ENGINE_VERSION` of the fcilbench that computed the row; `None` in rows of schema version 1.
    """

    git_sha: str | None = None
    dirty: bool | None = None
    digest: str
    engine_version: int | None = None


class Data(Closed):
    """The data on which a row was computed.

    Attributes:
        fingerprint: Digest of the content that was loaded; `None` if the cell ended before.
        declared: Digest that the data set declares; empty if it declares none.
    """

    fingerprint: str | None = None
    declared: str = ""


class PluginRecord(Closed):
    """One plugin of a cell, see `fcilbench.spec.cell.PluginUse`."""

    name: str
    version: str
    identity: dict[str, Any] = Field(default_factory=dict)
    code_digest: str = ""


class SelectorRecord(PluginRecord):
    """One selector of a cell, with all its hyperparameters."""

    params: dict[str, Any] = Field(default_factory=dict)


class Use(NamedTuple):
    """A plugin of a row.

    Attributes:
        place: Axis of the grid, or `selector <label>`.
        kind: Kind of plugin in the registry.
    """

    place: str
    kind: str
    record: PluginRecord
    params: dict[str, Any]


SelectorLabel = Annotated[str, Field(pattern=rf"^{SELECTOR_LABEL}$")]


class RowParams(Closed):
    """Every parameter of a cell; plain JSON, so that a later release can read old rows."""

    dataset: dict[str, Any] = Field(default_factory=dict)
    backbone: dict[str, Any] = Field(default_factory=dict)
    aggregator: dict[str, Any] = Field(default_factory=dict)
    stress: dict[str, Any] = Field(default_factory=dict)
    protocol: dict[str, Any] = Field(default_factory=dict)
    partition: dict[str, Any] = Field(default_factory=dict)
    tasks: int | list[int] | None = None
    seeds: dict[str, Any] = Field(default_factory=dict)
    evaluate: list[Scored] = Field(default_factory=list)
    runtime: dict[str, Any] = Field(default_factory=dict)


class Row(Closed):
    """The record of one planned cell.

    Attributes:
        schema_version: Version of this schema, `schema` in JSON.
        identity_version: `IDENTITY_VERSION` with which `cell_id` was made.
        cell_id: Identity of the cell, 64 hexadecimal digits.
        suite_digest: Digest of the resolved suite in the store (`suites.jsonl`); `None` if it was not kept.
        coords: Label of the cell on each axis of the grid, and `seed`.
        selectors: What picked the task of a sample under `inferred:<label>`, by label; the method's own rule is not
            among them.
        roles: What its method declares to be (`Aggregator.role`): boards need not have the plugin.
        seed: Index of the repetition.
        seeds: Derived seed of each role.
        failure: Why there is no result; set for `failed`, mostly set for `oom`, `timeout`, `killed`.
        skipped: The plugin's reason, if the status is `skipped`.
        metrics: See `Outcome`, as for `accuracy`, `test_sizes`, `classes`, `model_digest` and `warnings`.
        curve_ref: Curve file that the training wrote, relative to the store's folder; published in `curves.jsonl`.
        env: Digest of the environment record in the store (`environments.jsonl`).
        hardware_digest: Digest of processor, memory and accelerator; only rows with the same one compare in cost.
        host_digest: Digest of the machine's name.
        tuned_from: Digest of the rules of a lock file that the parameters come from.
        attempts: Number of attempts; 0 if none was started.
        started: Start of the first attempt, UTC.
        ended: End of the last attempt, UTC.
    """

    schema_version: Literal[1, 2, 3, 4, 5, 6] = Field(6, alias="schema")
    identity_version: int
    cell_id: str = Field(pattern="^[0-9a-f]{64}$")
    suite: str
    suite_digest: str | None = None
    coords: dict[str, str | int]
    plugins: dict[PluginKind, PluginRecord]
    params: RowParams
    selectors: dict[SelectorLabel, SelectorRecord] = Field(default_factory=dict)
    roles: Roles = Field(default_factory=dict)
    seed: int = Field(ge=0)
    seeds: dict[SeedRole, int]
    status: Status
    failure: Failure | None = None
    skipped: str | None = None
    metrics: dict[str, Value] = Field(default_factory=dict)
    accuracy: dict[Scored, list[list[float | None]]] = Field(default_factory=dict)
    test_sizes: list[int] = Field(default_factory=list)
    classes: list[list[str]] = Field(default_factory=list)
    curve_ref: str | None = None
    cost: Cost = Cost()
    device: str | None = None
    env: str
    hardware_digest: str
    host_digest: str
    code: Code
    data: Data
    model_digest: str | None = None
    warnings: list[str] = Field(default_factory=list)
    tuned_from: str | None = None
    attempts: int = Field(1, ge=0)
    started: Utc
    ended: Utc

    @model_validator(mode="after")
    def _status_fits(self) -> Row:
        if (self.status == "skipped") != (self.skipped is not None):
            raise ValueError("`skipped` holds the reason of a skipped cell, and of no other")
        if self.status == "failed" and self.failure is None:
            raise ValueError("a failed row needs its `failure`")
        if self.status == "ok" and self.failure is not None:
            raise ValueError("an ok row cannot have a `failure`")
        if not all(math.isfinite(each.value) for each in self.metrics.values() if each.value is not None):
            raise ValueError("a metric is not finite")
        return self

    @property
    def uses(self) -> list[Use]:
        """Every plugin of the row: those of its axes, then its selectors."""
        own = [
            Use(axis, PLUGIN_KINDS[axis], record, getattr(self.params, axis)) for axis, record in self.plugins.items()
        ]
        return own + [Use(f"selector {label}", SELECTORS, each, each.params) for label, each in self.selectors.items()]

    @property
    def reason(self) -> str:
        """The plugin's reason for skipping, or the failure's message; empty if there is a result."""
        return self.skipped or (self.failure.message if self.failure else "")

    @property
    def unstarted(self) -> bool:
        """Whether it says only that a run did not come to the cell: such a row hides none that another run wrote."""
        return self.status == "interrupted" and not self.attempts

    def to_json(self) -> str:
        """Returns the row as one line of JSON, without the newline."""
        return self.model_dump_json(by_alias=True)

    @property
    def digest(self) -> str:
        """SHA-256 of the row's JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def parse_row(raw: object) -> Row:
    """Returns a row of any known schema version.

    Args:
        raw: The row's JSON value.

    Raises:
        ValueError: If it is not a row.
        UsageError: If its schema is newer than this version of fcilbench.
    """
    check_version(raw)
    return Row.model_validate(raw)


def check_version(raw: object) -> dict[str, Any]:
    """Returns a JSON value that claims to be a row of a known schema version.

    Raises:
        ValueError: If it is not an object with an integer `schema`.
        UsageError: If its schema is newer than this version of fcilbench.
    """
    version = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(version, int):
        raise ValueError("not an object with an integer `schema`")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"row {str(raw.get('cell_id'))[:12]} has schema {version}, this fcilbench reads up to {SCHEMA_VERSION}",
            hint="upgrade fcilbench to read these results",
        )
    return raw


def row_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a row (draft 2020-12), as `fcilbench schema row` prints it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:fcilbench:row:{SCHEMA_VERSION}",
        **Row.model_json_schema(by_alias=True, mode="serialization"),
    }
