"""`fcilbench plan`: what a run would do and cost; writes nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from fcilbench.cli import console, options
from fcilbench.errors import NOTHING_SELECTED, PREREQUISITE

if TYPE_CHECKING:
    from rich.console import Console

    from fcilbench.cli.prepare import Prepared
    from fcilbench.suite.check import Missing

EXAMPLE = "fcilbench plan suites/quickstart.yaml --only aggregator:sum"


def plan(
    suite: options.SuiteFile,
    *,
    out: options.Out = options.RESULTS,
    set_: options.Set = None,
    only: options.Only = None,
    rerun: options.Rerun = "stale",
    gpus: options.Gpus = "auto",
    jobs: options.Jobs = None,
    data: options.Data = None,
    show_config: options.ShowConfig = False,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Show which cells are new, done, stale (and why) or failed, and what a run would cost. Writes nothing.

    Exit codes: 0; 4 if no cell is selected; 5 if something that the suite needs is missing here.
    """
    from fcilbench.cli.prepare import prepare, use_data_root
    from fcilbench.execution.devices import choose_devices

    use_data_root(data)
    devices = choose_devices(gpus)
    prepared = prepare(suite, set_, out, only=only, rerun=rerun, devices=devices)
    if show_config:
        _print_config(prepared, form)
    elif form is options.Form.JSON:
        console.show_json(_as_json(prepared))
    else:
        if form is options.Form.TABLE:
            print_plan(prepared, slots=len(devices) * slots_per_device(prepared, devices, jobs), to=console.out())
        _print_groups(prepared, form)
    if prepared.plan.expansion.prerequisites or _missing(prepared):
        raise typer.Exit(PREREQUISITE)
    if not prepared.plan.items:
        raise typer.Exit(NOTHING_SELECTED)


def slots_per_device(prepared: Prepared, devices: list[str], jobs: int | None) -> int:
    """Returns `--jobs`, or as many as the device takes where nobody says."""
    from fcilbench.execution.devices import default_jobs

    return jobs or default_jobs(devices, max((item.cell.runtime.threads for item in prepared.plan.items), default=1))


def print_plan(prepared: Prepared, *, slots: int, to: Console) -> None:
    """Prints how many cells are in which state, why they run, and what that costs.

    Args:
        prepared: The plan.
        slots: Cells that would run at a time.
        to: Where to.
    """
    plan, expansion = prepared.plan, prepared.plan.expansion
    product = " x ".join(f"{size} {axis}{_plural(axis, size)}" for axis, size in expansion.axes.items())
    excluded = f", {len(expansion.excluded)} excluded" if expansion.excluded else ""
    lines = [f"{expansion.name}: {product}{excluded} -> {len(expansion.cells)} cells"]
    if len(plan.items) != len(expansion.cells):
        lines[0] += f", {len(plan.items)} of them selected"
    counted = "   ".join(f"{state} {number}" for state, number in plan.counts.items())
    lines.append(f"  {counted or 'nothing'}   (store {prepared.store.root})")
    reasons = Counter(item.why for item in plan.items if item.why)
    lines += [f"  {number} x {why}" for why, number in reasons.items()]
    lines += [f"  missing here: {line}" for line in [*expansion.prerequisites, *_missing(prepared)]]
    if expansion.blocked:
        lines.append(f"  {expansion.blocked} cells are left out, since what they need is missing")
    lines.append(f"  {_cost(prepared, slots)}")
    to.print("\n".join(lines), markup=False, soft_wrap=True)


def _missing(prepared: Prepared) -> list[Missing]:
    from fcilbench.suite.check import missing_data

    return missing_data(prepared.plan.expansion)


def _plural(axis: str, size: int) -> str:
    return "" if size == 1 or axis == "stress" else "s"


def _print_groups(prepared: Prepared, form: options.Form) -> None:
    rows = [
        (*_axes(group.coords), ", ".join(f"{state} {number}" for state, number in group.counts.items()), *group.why[:1])
        for group in prepared.plan.groups
    ]
    headers = ("dataset", "backbone", "partition", "aggregator", "stress", "cells", "why")
    console.show_rows(headers, [(*row, "")[: len(headers)] for row in rows], form)


def _axes(coords: dict[str, str]) -> list[str]:
    return [str(coords.get(axis, "")) for axis in ("dataset", "backbone", "partition", "aggregator", "stress")]


def _cost(prepared: Prepared, slots: int) -> str:
    from fcilbench.cli.prepare import duration

    todo = prepared.plan.todo
    if not todo:
        return "nothing to run"
    seconds = prepared.plan.seconds
    guessed = sum(item.basis == "guess" for item in todo)
    basis = "measured on this hardware" if not guessed else f"guess for {guessed} of them"
    return (
        f"to run: {len(todo)} cells, {duration(seconds)} ({basis}), {slots} slots -> about {duration(seconds / slots)}"
    )


def _print_config(prepared: Prepared, form: options.Form) -> None:
    values = flatten(prepared.loaded.suite.model_dump(mode="json", exclude_none=True))
    origins = prepared.loaded.origins
    rows = [(path, value, _origin(path, origins)) for path, value in values.items()]
    if form is options.Form.JSON:
        found = [{"path": path, "value": value, "origin": origin} for path, value, origin in rows]
        console.show_json({"schema": 1, "values": found})
    else:
        console.show_rows(("path", "value", "origin"), rows, form)


def _origin(path: str, origins: dict[str, str]) -> str:
    """Returns where a value comes from: its own position, else that of the entry it was expanded from."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return "default"


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Returns the leaves of nested maps and lists by dotted path; an empty map or list is a leaf."""
    if isinstance(value, dict) and value:
        items = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and value:
        items = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        return {path: value}
    leaves: dict[str, Any] = {}
    for key, inner in items:
        leaves |= flatten(inner, f"{path}.{key}" if path else key)
    return leaves


def _as_json(prepared: Prepared) -> dict[str, Any]:
    from fcilbench.suite.check import download_bytes

    plan, expansion = prepared.plan, prepared.plan.expansion
    return {
        "schema": 1,
        "suite": expansion.name,
        "store": str(prepared.store.root),
        "counts": plan.counts,
        "seconds": plan.seconds,
        "download_bytes": download_bytes(_missing(prepared)),
        "missing_data": [{"name": each.name, "bytes": each.bytes, "how": each.how} for each in _missing(prepared)],
        "cells": [
            {
                "cell_id": item.cell_id,
                "coords": item.cell.coords,
                "state": item.state,
                "why": item.why,
                "run": item.run,
                "status": item.status,
                "seconds": item.seconds,
                "basis": item.basis,
            }
            for item in plan.items
        ],
        "excluded": [{"coords": coords, "because": because} for coords, because in expansion.excluded],
        "prerequisites": expansion.prerequisites,
        "blocked": expansion.blocked,
    }
