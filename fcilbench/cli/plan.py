"""`fcilbench plan`: shows what a run would do and cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import typer

from fcilbench.cli import console, options
from fcilbench.data.root import download_bytes
from fcilbench.errors import NOTHING_SELECTED, PREREQUISITE
from fcilbench.execution.bf16 import slow_bf16
from fcilbench.execution.devices import choose_devices
from fcilbench.suite.expand import missing_lines
from fcilbench.suite.plan import PlanItem
from fcilbench.suite.schema import AXES
from fcilbench.tables import flatten
from fcilbench.workflow.prepare import Prepared, describe, prepare, slots_per_device


def plan(
    suite: options.SuiteFile,
    *,
    out: options.Out = options.RESULTS,
    set_: options.Set = None,
    params: options.Params = None,
    only: options.Only = None,
    rerun: options.Rerun = "stale",
    gpus: options.Gpus = "auto",
    jobs: options.Jobs = None,
    data: options.Data = None,
    show_config: options.ShowConfig = False,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Show which cells are new, done, stale (and why) or failed, and what a run would cost. Writes nothing.

    Exit codes: 0; 4 if no cell is selected; 5 if something that the suite needs is missing here.
    """
    devices = choose_devices(gpus)
    prepared = prepare(suite, set_, out, only=only, rerun=rerun, devices=devices, params=params)
    if show_config:
        _show_config(prepared, form)
    else:
        console.warn(slow_bf16((item.cell.protocol.precision for item in prepared.plan.todo), devices))
        if form is options.Form.TABLE:
            slots = len(devices) * slots_per_device(prepared, devices, jobs)
            console.show(describe(prepared, slots))
        _show_cells(prepared, form)
    if prepared.missing:
        raise typer.Exit(PREREQUISITE)
    if not prepared.plan.items:
        raise typer.Exit(NOTHING_SELECTED)


def _show_cells(prepared: Prepared, form: options.Form) -> None:
    """Prints a line for each point of the grid, or a record for each cell."""
    plan_, expansion = prepared.plan, prepared.plan.expansion
    groups: dict[tuple[str, ...], list[PlanItem]] = defaultdict(list)
    for item in plan_.items:
        groups[tuple(str(item.cell.coords[axis]) for axis in AXES)].append(item)
    rows = []
    for coords, items in groups.items():
        states = ", ".join(f"{state} {number}" for state, number in Counter(item.state for item in items).items())
        rows.append((*coords, states, next((item.why for item in items if item.why), "")))
    keys = ("state", "why", "run", "status", "seconds", "basis")
    cells = [
        {"cell_id": item.cell_id, "coords": item.cell.coords, **{key: getattr(item, key) for key in keys}}
        for item in plan_.items
    ]
    about: dict[str, Any] = {
        "suite": expansion.name,
        "store": str(prepared.store.root),
        "counts": plan_.counts,
        "seconds": plan_.seconds,
        "download_bytes": download_bytes(prepared.missing_data),
        "missing_data": list(map(vars, prepared.missing_data)),
        "excluded": [{"coords": coords, "because": because} for coords, because in expansion.excluded],
        "prerequisites": missing_lines(plan_.without_id),
        "blocked": plan_.blocked,
        "remarks": expansion.remarks,
    }
    console.show_list(form, (*AXES, "cells", "why"), rows, key="cells", records=cells, **about)


def _show_config(prepared: Prepared, form: options.Form) -> None:
    """Prints each value of the suite with its position, else that of the entry it was expanded from."""
    values = flatten(prepared.loaded.suite.model_dump(mode="json", exclude_none=True), lists=True)
    origins = prepared.loaded.origins
    found = []
    for path, value in values.items():
        steps = path.split(".")
        above = (".".join(steps[:length]) for length in range(len(steps), 0, -1))
        found.append((path, value, next((origins[each] for each in above if each in origins), "default")))
    headers = ("path", "value", "origin")
    records = [dict(zip(headers, each, strict=True)) for each in found]
    console.show_list(form, headers, found, key="values", records=records)
