"""What a row says about its cell, whatever became of it: plugins, parameters, seeds and the digest of the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, get_args

from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.protocol import SeedRole
from fcilbench.spec.row import PLUGIN_KINDS, PluginKind, PluginRecord, RowParams


def cell_fields(cell: Cell) -> dict[str, Any]:
    """Returns the row's fields that come from the cell alone."""
    return {
        "suite": cell.suite,
        "coords": cell.coords,
        "plugins": plugin_records(cell),
        "params": row_params(cell),
        "seed": cell.seeds.index,
        "seeds": {role: cell.seeds.of(role) for role in get_args(SeedRole)},
    }


def code_digest(cell: Cell) -> str:
    """Returns the digest of the cell's four plugins' code digests, as `Row.code.digest` holds it.

    Example:
        A finished cell is stale when `row.code.digest != code_digest(cell)`; `row.plugins[kind].code_digest`
        then tells which plugin changed.
    """
    parts = {kind: _use(cell, kind).code_digest for kind in PLUGIN_KINDS}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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
