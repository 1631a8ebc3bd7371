"""The row of a finished cell: how it is built, and its metrics."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, cast, get_args

from fcilbench.results.private import hidden_texts
from fcilbench.results.provenance import Provenance
from fcilbench.spec.cell import OWN, Cell, PluginKind, PluginUse
from fcilbench.spec.identity import ENGINE_VERSION, IDENTITY_VERSION
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.outcome import Cost, Outcome, Value
from fcilbench.spec.protocol import Evaluation, Partition, Protocol, SeedRole, Seeds, TaskIdentity, scored_order
from fcilbench.spec.row import (
    SCHEMA_VERSION,
    Code,
    Data,
    Failure,
    PluginRecord,
    Row,
    RowParams,
    SelectorRecord,
    Status,
)


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
    suite_digest: str | None = None,
) -> Row:
    """Builds the row of a cell; `cost` is that of a cell without a result, as an `outcome` has its own.

    Metrics that are NaN or infinite become undefined, with a warning. Messages, reasons and
    warnings keep no home directories (`fcilbench.results.private`).

    Raises:
        ValueError: If status and outcome contradict each other (pydantic's ValidationError is one).
    """
    if (status == "ok") != (outcome is not None):
        raise ValueError(f"a row of status {status!r} {'needs an' if status == 'ok' else 'cannot have an'} outcome")
    fields: dict[str, Any] = {
        "cost": cost or Cost(),
        "seeds": {role: cell.seeds.of(role) for role in get_args(SeedRole)},
        **(_result(outcome) if outcome else {}),
    }
    code = Code(
        git_sha=provenance.git_sha, dirty=provenance.dirty, digest=code_digest(cell), engine_version=ENGINE_VERSION
    )
    row = Row(
        schema=SCHEMA_VERSION,
        identity_version=IDENTITY_VERSION,
        cell_id=cell_id,
        suite=cell.suite,
        suite_digest=suite_digest,
        coords=cell.coords,
        plugins=plugin_records(cell),
        params=row_params(cell),
        selectors=selector_records(cell),
        roles=cell.aggregator.roles,
        seed=cell.seeds.index,
        status=status,
        failure=failure,
        skipped=skipped,
        env=provenance.env,
        hardware_digest=provenance.hardware_digest,
        host_digest=provenance.host_digest,
        code=code,
        data=Data(fingerprint=outcome.data_fingerprint if outcome else None, declared=cell.data_fingerprint),
        tuned_from=cell.tuned_from,
        attempts=attempts,
        started=started,
        ended=ended,
        **fields,
    )
    return hidden_texts(row)


def _result(outcome: Outcome) -> dict[str, Any]:
    """Returns the fields of a row that come from its outcome; metrics that are not finite become undefined."""
    metrics, warnings = {}, list(outcome.warnings)
    for name, metric in outcome.metrics.items():
        finite = metric.value is None or math.isfinite(metric.value)
        metrics[name] = metric if finite else replace(metric, value=None)
        if not finite:
            warnings.append(f"{name} was {metric.value}: not a number, so undefined here")
    shared = {name: getattr(outcome, name) for name in Row.model_fields.keys() & Outcome.model_fields.keys()}
    return {**shared, "metrics": metrics, "warnings": warnings}


def code_digest(cell: Cell) -> str:
    """Returns the digest of the code of a cell's plugins, as `Row.code.digest` holds it."""
    parts = {str(kind): use.code_digest for kind, use in cell.plugins.items()}
    parts |= {f"selector {use.label}": use.code_digest for use in _named(cell)}
    return joined_digest(parts)


def joined_digest(parts: Mapping[str, str]) -> str:
    """Returns the digest of the plugins' code digests, by the place that each plugin has."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def plugin_records(cell: Cell) -> dict[PluginKind, PluginRecord]:
    """Returns the record of each of the cell's plugins."""
    shared = set(PluginRecord.model_fields)
    return {kind: PluginRecord(**use.model_dump(include=shared)) for kind, use in cell.plugins.items()}


def selector_records(cell: Cell) -> dict[str, SelectorRecord]:
    """Returns the record of each of the cell's selectors by label, without that of the method's own rule."""
    shared = set(SelectorRecord.model_fields)
    return {use.label: SelectorRecord(**use.model_dump(include=shared)) for use in _named(cell)}


def _named(cell: Cell) -> list[PluginUse]:
    return [use for use in cell.selectors if use.name != OWN.name]


def row_params(cell: Cell) -> RowParams:
    """Returns the resolved parameters of a cell as plain JSON values."""
    return RowParams(
        **{kind: use.params for kind, use in cell.plugins.items()},
        protocol=cell.protocol.model_dump(mode="json"),
        partition=cell.partition.model_dump(mode="json"),
        tasks=list(cell.tasks) if isinstance(cell.tasks, tuple) else cell.tasks,
        seeds=cell.seeds.model_dump(mode="json", exclude={"index"}),
        evaluate=cell.scored,
        runtime=cell.runtime.model_dump(mode="json"),
    )


def cell_of(row: Row) -> Cell:
    """Returns the cell of a row with all that identifies it: the inverse of `build_row`, without runtime and limits.

    Raises:
        ValueError: If this version of fcilbench has no such cell (pydantic's ValidationError is one).
    """
    params = row.params
    uses = {label: PluginUse(label=label, **record.model_dump()) for label, record in row.selectors.items()}
    picking = [key for key in params.evaluate if key.startswith("inferred")]
    if {*uses} != {key.partition(":")[2] for key in picking} - {""}:
        raise ValueError(
            f"it is scored under {', '.join(params.evaluate)}, its selectors are {', '.join(uses) or 'none'}"
        )
    return Cell.model_validate(
        {
            **{kind: PluginUse(**record.model_dump()) for kind, record in row.plugins.items()},
            "suite": row.suite,
            "protocol": Protocol.model_validate(params.protocol),
            "tasks": tuple(params.tasks) if isinstance(params.tasks, list) else params.tasks,
            "data_fingerprint": row.data.declared,
            "partition": Partition.model_validate(params.partition),
            "seeds": Seeds.model_validate({**params.seeds, "index": row.seed}),
            "evaluate": Evaluation(task_identity=task_identities(params.evaluate)),
            "selectors": tuple(uses.get(key.partition(":")[2], OWN) for key in picking) or (OWN,),
        }
    )


def task_identities(scored: Iterable[str]) -> tuple[TaskIdentity, ...]:
    """Returns the task identities of what figures are measured under: selectors share `inferred`."""
    return cast("tuple[TaskIdentity, ...]", tuple(dict.fromkeys(key.partition(":")[0] for key in scored)))


def metric_values(row: Row, names: Collection[str]) -> dict[str, Value]:
    """Returns the named metrics of a row, by `<metric>/<task identity>` or `<metric>/inferred:<selector>`.

    A metric is computed from the accuracy matrix where that is possible, so that old rows have new metrics; elsewhere
    the recorded value counts.
    """
    found: dict[str, Value] = {}
    scored = scored_order({*row.accuracy, *(key.partition("/")[2] for key in row.metrics)})
    for metric in (METRICS[name] for name in names):
        for identity in scored:
            key, matrix = f"{metric.name}/{identity}", row.accuracy.get(identity)
            if matrix and metric.function is not None:
                value = metric.function(matrix, row.test_sizes)
                found[key] = Value(value=value, unit=metric.unit, better=metric.better)
            elif key in row.metrics:
                found[key] = row.metrics[key]
    return found


def all_metrics(row: Row) -> dict[str, Value]:
    """Returns the metrics that a row records, then those of a later fcilbench that its matrices give."""
    return {**row.metrics, **{k: v for k, v in metric_values(row, METRICS).items() if k not in row.metrics}}
