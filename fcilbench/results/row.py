"""Builds the row of a cell from what is known at its end."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, get_args

from fcilbench.api.protocol import SeedRole
from fcilbench.results.outcome import Cost, Outcome
from fcilbench.results.provenance import Provenance
from fcilbench.results.schema import (
    PLUGIN_KINDS,
    SCHEMA_VERSION,
    STATUSES,
    Code,
    Data,
    Failure,
    PluginKind,
    PluginRecord,
    Row,
    RowParams,
    Status,
)
from fcilbench.suite.cell import Cell, PluginUse
from fcilbench.suite.identity import IDENTITY_VERSION

__all__ = [
    "PLUGIN_KINDS",
    "SCHEMA_VERSION",
    "STATUSES",
    "Code",
    "Data",
    "Failure",
    "PluginKind",
    "PluginRecord",
    "Row",
    "RowParams",
    "Status",
    "build_row",
    "code_digest",
    "plugin_records",
    "row_params",
]


def code_digest(cell: Cell) -> str:
    """Returns the digest of the cell's four plugins' code digests, as `Row.code.digest` holds it.

    Example:
        A finished cell is stale when `row.code.digest != code_digest(cell)`; `row.plugins[kind].code_digest`
        then tells which plugin changed.
    """
    parts = {kind: _use(cell, kind).code_digest for kind in PLUGIN_KINDS}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def build_row(
    cell: Cell,
    cell_id: str,
    status: Status,
    outcome: Outcome | None = None,
    *,
    provenance: Provenance,
    started: datetime,
    ended: datetime,
    failure: Failure | None = None,
    skipped: str | None = None,
    cost: Cost | None = None,
    attempts: int = 1,
    warnings: Iterable[str] = (),
    tuned_from: str | None = None,
    identity_version: int = IDENTITY_VERSION,
) -> Row:
    """Builds the row of a cell from what is known at its end.

    Args:
        cell: The cell.
        cell_id: Its identity.
        status: What became of it.
        outcome: Its result; needed for `ok`, absent otherwise.
        provenance: Where it was computed (`provenance.capture`).
        started: Start of the first attempt; timezone-aware.
        ended: End of the last attempt; timezone-aware.
        failure: Why there is no result.
        skipped: The plugin's reason for skipping.
        cost: What a cell without a result had cost when it ended; a result brings its own.
        attempts: Attempts it took.
        warnings: Further warnings beside the result's own.
        tuned_from: Digest of the tuning lock file.
        identity_version: `fcilbench.suite.identity.IDENTITY_VERSION`.

    Returns:
        The row. Metrics that are NaN or infinite become undefined, with a warning that says so.

    Raises:
        ValueError: If status and result contradict each other (pydantic's ValidationError is one).
    """
    if (status == "ok") != (outcome is not None):
        raise ValueError(f"a row of status {status!r} {'needs an' if status == 'ok' else 'cannot have an'} outcome")
    result = {} if outcome is None else _result(outcome)
    notes = [*result.pop("warnings", []), *warnings]
    return Row(
        schema=SCHEMA_VERSION,
        identity_version=identity_version,
        cell_id=cell_id,
        suite=cell.suite,
        coords=cell.coords,
        plugins=plugin_records(cell),
        params=row_params(cell),
        seed=cell.seeds.index,
        status=status,
        failure=failure,
        skipped=skipped,
        env=provenance.env,
        hardware_digest=provenance.hardware_digest,
        host_digest=provenance.host_digest,
        code=Code(git_sha=provenance.git_sha, dirty=provenance.dirty, digest=code_digest(cell)),
        data=Data(fingerprint=outcome.data_fingerprint if outcome else None, declared=cell.data_fingerprint),
        warnings=notes,
        tuned_from=tuned_from,
        attempts=attempts,
        started=started,
        ended=ended,
        **{"seeds": _seeds(cell), "cost": cost or Cost(), **result},
    )


def row_params(cell: Cell) -> RowParams:
    """Returns every resolved parameter of a cell as plain JSON values."""
    tasks = list(cell.tasks) if isinstance(cell.tasks, tuple) else cell.tasks
    return RowParams(
        dataset=cell.dataset.params,
        backbone=cell.backbone.params,
        aggregator=cell.aggregator.params,
        stress=cell.stress.params,
        protocol=cell.protocol.model_dump(mode="json"),
        partition=cell.partition.model_dump(mode="json"),
        tasks=tasks,
        seeds=cell.seeds.model_dump(mode="json", exclude={"index"}),
        evaluate=list(cell.evaluate.task_identity),
        runtime=cell.runtime.model_dump(mode="json"),
    )


def plugin_records(cell: Cell) -> dict[PluginKind, PluginRecord]:
    """Returns the record of each of the cell's plugins."""
    return {kind: _record(_use(cell, kind)) for kind in PLUGIN_KINDS}


def _use(cell: Cell, kind: PluginKind) -> PluginUse:
    uses: Mapping[PluginKind, PluginUse] = {
        "dataset": cell.dataset,
        "backbone": cell.backbone,
        "aggregator": cell.aggregator,
        "stress": cell.stress,
    }
    return uses[kind]


def _record(use: PluginUse) -> PluginRecord:
    return PluginRecord(name=use.name, version=use.version, identity=use.identity, code_digest=use.code_digest)


def _seeds(cell: Cell) -> dict[SeedRole, int]:
    return {role: cell.seeds.of(role) for role in get_args(SeedRole)}


def _result(outcome: Outcome) -> dict[str, Any]:
    """Returns the row's fields that come from a result, non-finite metrics made undefined and named."""
    metrics, notes = {}, list(outcome.warnings)
    for name, metric in outcome.metrics.items():
        finite = metric.value is None or math.isfinite(metric.value)
        metrics[name] = metric if finite else metric.model_copy(update={"value": None})
        if not finite:
            notes.append(f"{name} was {metric.value}: not a number, so undefined here")
    return {
        "metrics": metrics,
        "accuracy": outcome.accuracy,
        "test_sizes": outcome.test_sizes,
        "classes": outcome.classes,
        "cost": outcome.cost,
        "seeds": outcome.seeds,
        "model_digest": outcome.model_digest,
        "device": outcome.device,
        "warnings": notes,
    }
