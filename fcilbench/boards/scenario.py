"""What may be compared: cells of one scenario, which differ in the method and the seed and in nothing else."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fcilbench.results.provenance import digest
from fcilbench.results.row import plugin_records, row_params
from fcilbench.spec.cell import Cell
from fcilbench.spec.outcome import Value
from fcilbench.spec.row import PluginKind, PluginRecord, Row, RowParams

METHOD_FIELDS = ("lr", "weight_decay")
"""Protocol fields that are tuned per method, as in the tables of Kim and Do 2026; all others belong to the scenario."""

MISSING = "missing"


@dataclass(frozen=True)
class Sample:
    """A row, or a planned cell that has no row yet (status `missing`)."""

    cell_id: str
    coords: Mapping[str, str | int]
    plugins: Mapping[PluginKind, PluginRecord]
    params: RowParams
    seed: int
    status: str
    declared: str
    fingerprint: str | None
    metrics: Mapping[str, Value]
    reason: str | None
    warnings: tuple[str, ...]
    code_digest: str | None
    commit: str | None


def samples(rows: Iterable[Row], planned: Mapping[str, Cell] | None = None) -> list[Sample]:
    """Returns one sample per cell; the last row of a cell wins.

    Args:
        rows: Rows, in the order they were written.
        planned: Cells by id. If given, rows of other cells are left out, cells without a row are `missing`, and the
            plan's labels count: another suite may have run the same cell under another name.
    """
    latest = {row.cell_id: row for row in rows}
    if planned is None:
        return [_of_row(row) for row in latest.values()]
    return [
        replace(_of_row(latest[key]), coords=cell.coords) if key in latest else _of_cell(key, cell)
        for key, cell in planned.items()
    ]


def scenario_of(sample: Sample) -> dict[str, Any]:
    """Returns all that a sample's scenario is made of, except the digest of the data that was loaded."""
    protocol = {key: value for key, value in sample.params.protocol.items() if key not in METHOD_FIELDS}
    return {
        "protocol": protocol,
        "tasks": sample.params.tasks,
        "partition": sample.params.partition,
        "seeds": sample.params.seeds,
        "evaluate": list(sample.params.evaluate),
        "data": {"declared": sample.declared},
        **{kind: _identity(sample, kind) for kind in ("dataset", "backbone", "stress")},
    }


def method_of(sample: Sample) -> dict[str, Any]:
    """Returns all that a sample's method is made of: the aggregator and the protocol fields tuned for it."""
    tuned = {key: sample.params.protocol[key] for key in METHOD_FIELDS if key in sample.params.protocol}
    return {**_identity(sample, "aggregator"), **tuned}


def split(found: Iterable[Sample]) -> list[tuple[dict[str, Any], list[Sample]]]:
    """Splits samples into scenarios that must not be mixed.

    A cell that ended before it loaded its data belongs to its scenario's data if there is only one; if equal
    declarations loaded different data, it stands apart, with `data.loaded` unknown.

    Returns:
        `(scenario, samples)` per block, ordered by labels, then by content.
    """
    by_key: dict[str, tuple[dict[str, Any], list[Sample]]] = {}
    for sample in found:
        scenario = scenario_of(sample)
        by_key.setdefault(digest(scenario), (scenario, []))[1].append(sample)
    blocks = []
    for scenario, members in by_key.values():
        loaded = {sample.fingerprint for sample in members if sample.fingerprint is not None}
        sole = next(iter(loaded)) if len(loaded) == 1 else None
        parts: dict[str | None, list[Sample]] = defaultdict(list)
        for sample in members:
            parts[sample.fingerprint or sole].append(sample)
        for fingerprint, part in parts.items():
            data = {**scenario["data"], "loaded": fingerprint}
            blocks.append(({**scenario, "data": data}, part))
    return sorted(blocks, key=lambda block: (labels_text(block[1][0]), json.dumps(block[0], sort_keys=True)))


def labels(sample: Sample) -> dict[str, str]:
    """Returns the labels of a sample's scenario."""
    return {axis: str(sample.coords.get(axis, "")) for axis in ("dataset", "backbone", "partition", "stress")}


def labels_text(sample: Sample) -> str:
    """Returns the labels of a sample's scenario in one line."""
    return " / ".join(labels(sample).values())


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Flattens nested objects to dotted keys; other values become compact JSON.

    Example:
        >>> flatten({"protocol": {"rounds": 5}, "tasks": [2, 2]})
        {'protocol.rounds': '5', 'tasks': '[2,2]'}
    """
    if isinstance(value, Mapping) and value:
        parts = (flatten(item, f"{prefix}.{key}" if prefix else str(key)) for key, item in value.items())
        return {key: item for part in parts for key, item in part.items()}
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)
    return {prefix: text}


def _identity(sample: Sample, kind: PluginKind) -> dict[str, Any]:
    record = sample.plugins[kind]
    return {"name": record.name, "version": record.version, **{f"params.{k}": v for k, v in record.identity.items()}}


def _of_row(row: Row) -> Sample:
    reason = row.skipped
    if row.failure is not None:
        reason = f"{row.failure.type}: {row.failure.message}"
    return Sample(
        cell_id=row.cell_id,
        coords=row.coords,
        plugins=row.plugins,
        params=row.params,
        seed=row.seed,
        status=row.status,
        declared=row.data.declared,
        fingerprint=row.data.fingerprint,
        metrics=row.metrics if row.status == "ok" else {},
        reason=reason,
        warnings=tuple(row.warnings),
        code_digest=row.code.digest if row.status == "ok" else None,
        commit=row.code.git_sha if row.status == "ok" else None,
    )


def _of_cell(cell_id: str, cell: Cell) -> Sample:
    return Sample(
        cell_id=cell_id,
        coords=cell.coords,
        plugins=plugin_records(cell),
        params=row_params(cell),
        seed=cell.seeds.index,
        status=MISSING,
        declared=cell.data_fingerprint,
        fingerprint=None,
        metrics={},
        reason=None,
        warnings=(),
        code_digest=None,
        commit=None,
    )
