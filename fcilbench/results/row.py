"""Builds the row of a cell from what is known at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from fcilbench.results.cell_fields import cell_fields, code_digest, plugin_records, row_params
from fcilbench.results.provenance import Provenance
from fcilbench.spec.cell import Cell
from fcilbench.spec.identity import IDENTITY_VERSION
from fcilbench.spec.outcome import Cost, Outcome
from fcilbench.spec.row import (
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
        identity_version: `fcilbench.spec.identity.IDENTITY_VERSION`.

    Returns:
        The row. Metrics that are NaN or infinite become undefined, with a warning that says so.

    Raises:
        ValueError: If status and result contradict each other (pydantic's ValidationError is one).
    """
    return Row(
        schema=SCHEMA_VERSION,
        identity_version=identity_version,
        cell_id=cell_id,
        status=status,
        failure=failure,
        skipped=skipped,
        env=provenance.env,
        hardware_digest=provenance.hardware_digest,
        host_digest=provenance.host_digest,
        code=Code(git_sha=provenance.git_sha, dirty=provenance.dirty, digest=code_digest(cell)),
        data=Data(fingerprint=outcome.data_fingerprint if outcome else None, declared=cell.data_fingerprint),
        tuned_from=tuned_from,
        attempts=attempts,
        started=started,
        ended=ended,
        **{**cell_fields(cell), "cost": cost or Cost(), **_result(status, outcome, warnings)},
    )


def _result(status: Status, outcome: Outcome | None, warnings: Iterable[str]) -> dict[str, Any]:
    """Returns the row's fields that come from a result, non-finite metrics made undefined and named, and all warnings.

    Raises:
        ValueError: If the status asks for a result and there is none, or the other way round.
    """
    if (status == "ok") != (outcome is not None):
        raise ValueError(f"a row of status {status!r} {'needs an' if status == 'ok' else 'cannot have an'} outcome")
    if outcome is None:
        return {"warnings": [*warnings]}
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
        "warnings": [*notes, *warnings],
    }
