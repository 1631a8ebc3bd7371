"""What may be compared: cells of one scenario, which differ in the method and the seed and in nothing else."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from fcilbench.results.provenance import digest
from fcilbench.results.row import plugin_records, row_params, selector_records
from fcilbench.spec.cell import Cell, PluginKind, Role, Roles
from fcilbench.spec.protocol import Protocol, Runtime, Scored, TaskIdentity
from fcilbench.spec.row import ROLES_SINCE, PluginRecord, Row, RowParams, SelectorRecord
from fcilbench.tables import texts

METHOD_FIELDS = ("lr", "weight_decay", "clip_norm", "optimizer", "momentum", "schedule")
"""The local optimiser's recipe, which a method may have of its own; all other protocol fields are of the scenario."""

_EARLIER_ROLES: Mapping[str, Roles] = {
    **dict.fromkeys(("fcilbench/ncm", "fcilbench/ridge"), dict.fromkeys(get_args(TaskIdentity), "control")),
    "fcilbench/fedavg": {"oracle": "control"},
    "fcilbench/joint": dict.fromkeys(get_args(TaskIdentity), "reference"),
}
"""Roles of the built-ins, for rows of before rows held them."""


@functools.cache
def _defaults() -> dict[str, Any]:
    return Protocol().model_dump(mode="json")


@dataclass(frozen=True)
class BoardCell:
    """A cell of a board: planned, run, or both.

    Attributes:
        declared: Digest that its data set declares.
        roles: The roles of its method; none in rows of before rows held them.
        row: `None` for a planned cell that has none yet.
    """

    coords: Mapping[str, str | int]
    plugins: Mapping[PluginKind, PluginRecord]
    params: RowParams
    seed: int
    declared: str
    roles: Roles
    row: Row | None
    selectors: Mapping[str, SelectorRecord] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Status of the row, or `missing`."""
        return self.row.status if self.row else "missing"

    @property
    def hardware(self) -> str | None:
        """What decides seconds: device, digest of the hardware and settings; `None` if nothing was computed.

        Settings are named if they are not at their default, which rows that do not record them have.
        """
        if self.row is None or self.row.device is None:
            return None
        default, own = Runtime().model_dump(), self.params.runtime
        decisive = ("threads", "capture", "portable")
        settings = [f" {key} {own[key]}" for key in decisive if own.get(key, default[key]) != default[key]]
        return f"{self.row.device} {self.row.hardware_digest.removeprefix('sha256:')[:12]}{''.join(settings)}"


def board_cells(rows: Iterable[Row], planned: Mapping[str, Cell] | None) -> list[BoardCell]:
    """Returns the cells of a board; the last row of a cell wins.

    The engine's version is part of a cell's id. Of rows that differ in nothing else, those of the newest engine count.

    Args:
        rows: Rows, in the order they were written.
        planned: Cells by id. If given, rows of other cells are left out, cells without a row are `missing`, and the
            plan's labels count: another suite may have run the same cell under another name.
    """
    latest = {row.cell_id: row for row in rows}
    if planned is None:
        return _newest([_of_row(row, row.coords) for row in latest.values()])
    return [_of_row(latest[key], cell.coords) if key in latest else _of_plan(cell) for key, cell in planned.items()]


def _newest(cells: Sequence[BoardCell]) -> list[BoardCell]:
    """Leaves out cells whose scenario, method and seed another cell has from a newer engine."""
    engines = [cell.row.code.engine_version or 0 if cell.row else 0 for cell in cells]
    if len(set(engines)) < 2:
        return list(cells)
    keys = [
        (digest({"scenario": scenario_of(cell, stress=True), "method": method_of(cell)}), cell.seed) for cell in cells
    ]
    newest: dict[tuple[str, int], int] = defaultdict(int)
    for key, engine in zip(keys, engines, strict=True):
        newest[key] = max(newest[key], engine)
    return [cell for cell, key, engine in zip(cells, keys, engines, strict=True) if engine == newest[key]]


def _of_row(row: Row, coords: Mapping[str, str | int]) -> BoardCell:
    return BoardCell(coords, row.plugins, row.params, row.seed, row.data.declared, row.roles, row, row.selectors)


def _of_plan(cell: Cell) -> BoardCell:
    declared, roles, picking = cell.data_fingerprint, cell.aggregator.roles, selector_records(cell)
    records, params = plugin_records(cell), row_params(cell)
    return BoardCell(cell.coords, records, params, cell.seeds.index, declared, roles, None, picking)


def scenario_of(cell: BoardCell, *, stress: bool = True) -> dict[str, Any]:
    """Returns all that a cell's scenario is made of, except the digest of the data that was loaded.

    Without `stress` it is the scenario that a clean cell shares with its stressed ones.
    """
    kinds: tuple[PluginKind, ...] = ("dataset", "backbone", "stress") if stress else ("dataset", "backbone")
    protocol = {**_defaults(), **cell.params.protocol}  # a row of before a field was added has its neutral default
    return {
        "protocol": {key: value for key, value in protocol.items() if key not in METHOD_FIELDS},
        "tasks": cell.params.tasks,
        "partition": cell.params.partition,
        "seeds": cell.params.seeds,
        "evaluate": list(cell.params.evaluate),
        **({"selectors": _selectors(cell)} if cell.selectors else {}),
        "data": {"declared": cell.declared},
        **{kind: _identity(cell, kind) for kind in kinds},
    }


def method_of(cell: BoardCell) -> dict[str, Any]:
    """Returns all that a cell's method is made of: the aggregator and the local optimiser's recipe."""
    return {**_identity(cell, "aggregator"), **recipe_of(cell)}


def recipe_of(cell: BoardCell) -> dict[str, Any]:
    """Returns the values of `METHOD_FIELDS`."""
    protocol = {**_defaults(), **cell.params.protocol}
    return {key: protocol[key] for key in METHOD_FIELDS}


def split(
    cells: Iterable[BoardCell], *, stress: bool = True, hardware: bool = False
) -> list[tuple[dict[str, Any], list[BoardCell]]]:
    """Splits cells into scenarios that must not be mixed.

    A cell that ended before it loaded its data belongs to its scenario's data if there is only one; if equal
    declarations loaded different data, it stands apart, with `data.loaded` unknown. So it is with the hardware.

    With `stress`, clean and stressed cells are scenarios of their own; with `hardware`, other hardware is another
    scenario. Returns `(scenario, cells)` per block, ordered by labels, then by content.
    """
    by_key: dict[str, tuple[dict[str, Any], list[BoardCell]]] = {}
    for cell in cells:
        scenario = scenario_of(cell, stress=stress)
        by_key.setdefault(digest(scenario), (scenario, []))[1].append(cell)
    blocks = []
    for scenario, members in by_key.values():
        parts: dict[tuple[str | None, str | None], list[BoardCell]] = defaultdict(list)
        data = _known([cell.row.data.fingerprint if cell.row else None for cell in members])
        device = _known([cell.hardware for cell in members])
        for cell, loaded, machine in zip(members, data, device, strict=True):
            parts[loaded, machine if hardware else None].append(cell)
        for (loaded, machine), part in parts.items():
            whole = {**scenario, "data": {**scenario["data"], "loaded": loaded}}
            blocks.append(({**whole, "hardware": machine} if hardware else whole, part))
    return sorted(
        blocks, key=lambda block: (" / ".join(labels(block[1]).values()), json.dumps(block[0], sort_keys=True))
    )


def _known(values: Sequence[str | None]) -> list[str | None]:
    """Returns the values with the only one that is known in place of those that are not."""
    known = {value for value in values if value is not None}
    sole = next(iter(known)) if len(known) == 1 else None
    return [value or sole for value in values]


def by_method(members: Iterable[BoardCell]) -> dict[str, list[BoardCell]]:
    """Groups a block's cells by method; methods that share a label get what tells them apart added to it."""
    by_key: dict[str, list[BoardCell]] = defaultdict(list)
    for cell in members:
        by_key[digest(method_of(cell))].append(cell)
    by_label: dict[str, list[list[BoardCell]]] = defaultdict(list)
    for group in by_key.values():
        by_label[str(group[0].coords.get("aggregator", ""))].append(group)
    methods = {}
    for label, found in by_label.items():
        facts = [texts(method_of(group[0])) for group in found]
        keys = sorted({key for fact in facts for key in fact})
        differing = [key for key in keys if len({fact.get(key) for fact in facts}) > 1]
        for group, fact in zip(found, facts, strict=True):
            values = {**texts({"params": group[0].params.aggregator}), **fact}  # an identity holds no defaults
            apart = ", ".join(f"{key.removeprefix('params.')}={values.get(key, '?')}" for key in differing)
            methods[f"{label} ({apart})" if apart else label] = group
    return methods


def roles_of(members: Sequence[BoardCell]) -> Roles:
    """Returns the roles of the method of some cells by task identity, as its last row has them, or else the plan."""
    rows = [cell.row for cell in members if cell.row is not None]
    if not rows:
        return members[0].roles
    last = max(rows, key=lambda row: (row.schema_version >= ROLES_SINCE, row.ended))
    return last.roles if last.schema_version >= ROLES_SINCE else _EARLIER_ROLES.get(last.plugins["aggregator"].name, {})


def role_under(roles: Roles, scored: Scored) -> Role:
    """Returns the role of a method under a task identity or a selector.

    A selector picks the same task for all methods, as the oracle tells it to all: their controls are the same.
    """
    identity: Any = "oracle" if scored.startswith("inferred:") else scored
    return roles.get(identity, "method")


def labels(members: Sequence[BoardCell]) -> dict[str, str]:
    """Returns the labels of a scenario's cells; where their stress differs, how many there are."""
    found = {}
    for axis in ("dataset", "backbone", "partition", "stress"):
        values = sorted({str(cell.coords.get(axis, "")) for cell in members})
        several = axis == "stress" and len(values) > 1
        found[axis] = f"of {len(values)} kinds" if several else values[0]
    return found


def _identity(cell: BoardCell, kind: PluginKind) -> dict[str, Any]:
    return _identity_of(cell.plugins[kind])


def _selectors(cell: BoardCell) -> dict[str, dict[str, Any]]:
    return {label: _identity_of(record) for label, record in cell.selectors.items()}


def _identity_of(record: PluginRecord) -> dict[str, Any]:
    return {"name": record.name, "version": record.version, **{f"params.{k}": v for k, v in record.identity.items()}}
