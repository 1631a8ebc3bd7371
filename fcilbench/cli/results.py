"""`fcilbench results`: results folders as things that travel."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcilbench.cli import console, options
from fcilbench.errors import CELLS_FAILED, UsageError

if TYPE_CHECKING:
    from fcilbench.results.conflicts import Conflict

app = typer.Typer(help="Merge results folders and back-fill trackers.", no_args_is_help=True)


@app.command(epilog="Example: [bold]fcilbench results merge machine-a machine-b --out all[/bold]")
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Results folders to read.", show_default=False)],
    out: options.Out = options.RESULTS,
    tolerance: options.Tolerance = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Merge results folders into one: a union by cell that loses nothing and reports what disagrees.

    Exit codes: 0; 3 if two folders disagree on the result of a cell.
    """
    from fcilbench.results.merge import merge as merge_stores
    from fcilbench.results.store import Store

    report = merge_stores([Store(folder) for folder in folders], Store(out), _tolerances(tolerance))
    if form is options.Form.JSON:
        conflicts = [asdict(each) for each in report.conflicts]
        console.show_json({"schema": 1, "cells": report.cells, "added": report.added, "conflicts": conflicts})
    else:
        console.show(f"{out}: {report.cells} cells, {report.added} rows added, {len(report.conflicts)} conflicts")
        for each in report.conflicts:
            _print_conflict(each)
    if report.conflicts:
        raise typer.Exit(CELLS_FAILED)


@app.command(epilog="Example: [bold]fcilbench results sync mlflow --tracking http://tracking:5000[/bold]")
def sync(
    tracker: Annotated[str, typer.Argument(help="Tracker; see `fcilbench plugins list --kind trackers`.")] = "mlflow",
    out: options.Out = options.RESULTS,
    tracking: options.Tracking = None,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Show every row of a results folder to a tracker; what it has already stays as it is.

    Exit codes: 0; 3 if the tracker lost rows.
    """
    from fcilbench.results.store import Store
    from fcilbench.tracking.base import open_tracker
    from fcilbench.tracking.sync import sync as sync_store

    store = Store(out)
    report = sync_store(store, open_tracker(tracker, store, uri=tracking))
    console.show(f"{tracker}: {report.logged} rows logged, {report.present} there already, {report.lost} lost")
    if report.lost:
        raise typer.Exit(CELLS_FAILED)


def _print_conflict(conflict: Conflict) -> None:
    from fcilbench.cli.lines import cell_name

    console.show(f"conflict {conflict.cell_id[:12]} {cell_name(dict(conflict.coords))}")
    console.show(f"  kept  {conflict.kept_from} ({conflict.kept_env})")
    console.show(f"  other {conflict.other_from} ({conflict.other_env})")
    for each in conflict.metrics:
        console.show(f"  {each.metric}: kept {each.kept}, other {each.other}, tolerance {each.tolerance:g}")
    for key, (kept, other) in conflict.environment.items():
        console.show(f"  {key}: kept {kept}, other {other}")


def _tolerances(options_: list[str] | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in options_ or ():
        metric, equals, value = text.partition("=")
        try:
            found[metric] = float(value)
        except ValueError:
            equals = ""
        if not equals or not metric:
            raise UsageError(f"--tolerance {text}: not METRIC=VALUE", hint="e.g. --tolerance 'faa/*=1e-6'")
    return found
