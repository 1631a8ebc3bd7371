"""`fcilbench results`: results folders as things that travel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fcilbench.cli import complete, console, options
from fcilbench.cli.progress import cell_name
from fcilbench.cli.terminal import SCREEN
from fcilbench.errors import CELLS_FAILED, UsageError
from fcilbench.execution.lease import running_cells
from fcilbench.results.chosen import select_rows
from fcilbench.results.frames import SUFFIXES, write_rows
from fcilbench.results.merge import Conflict
from fcilbench.results.merge import export as export_rows
from fcilbench.results.merge import merge as merge_stores
from fcilbench.results.store import Store
from fcilbench.shipped import located
from fcilbench.tracking.base import open_tracker, parse_tracking
from fcilbench.tracking.base import sync as sync_store
from fcilbench.workflow.again import parse_tolerances
from fcilbench.workflow.again import verify as verify_folder

app = options.group("Merge, export, verify and track results folders.")


@options.command(app, "results merge machine-a machine-b --out all")
def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Results folders to read.", show_default=False, autocompletion=complete.leaderboards),
    ],
    out: options.Out = options.RESULTS,
    tolerance: options.Tolerance = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Merge results folders into one: a union by cell that loses nothing and reports what disagrees.

    Metrics, accuracy matrices, bytes and the digests of models and data are compared. Results of one kind of processor
    with the same code and libraries must be equal to the bit, and portable numbers everywhere; others are a conflict if
    they differ by more than the spread that was measured between instruction sets, and otherwise only reported.
    Exit codes: 0; 3 if two folders disagree on the result of a cell.
    """
    stores = [Store(located(folder, "leaderboards")) for folder in folders]
    for cell, owner in running_cells(Store(out)).items():
        hint = "merge when it has ended, or into another folder"
        raise UsageError(f"cell {cell[:12]} of {out} is being trained by {owner}", hint=hint)
    report = merge_stores(stores, Store(out), parse_tolerances(tolerance))
    if form not in (options.Form.TABLE, options.Form.MD):
        body = {
            "schema": 1,
            "cells": report.cells,
            "added": report.added,
            "conflicts": [_as_json(each) for each in report.conflicts],
            "remarks": [_as_json(each) for each in report.remarks],
        }
        console.show(json.dumps(body, indent=2, ensure_ascii=False, default=str))
    else:
        remarks = (
            f", {len(report.remarks)} with another model, as elsewhere computed ones have" if report.remarks else ""
        )
        console.show(
            f"{out}: {report.cells} cells, {report.added} rows added, {len(report.conflicts)} conflicts{remarks}"
        )
        for each in (*report.conflicts, *report.remarks):
            console.show(_lines(each))
    if report.conflicts:
        raise typer.Exit(CELLS_FAILED)


@options.command(app, "results export leaderboards/mine --out results")
def export(
    target: Annotated[
        Path, typer.Argument(help="New folder, or a .csv or .parquet file.", metavar="TARGET", show_default=False)
    ],
    out: options.Out = options.RESULTS,
    only: options.Only = None,
) -> None:
    """Write the last row of each cell to a new folder, with its environment, resolved suite and curve.

    Such a folder is what leaderboards/ holds: `fcilbench reproduce` can train any of its cells again. A file that ends
    in .csv or .parquet gets a table with a line for each cell instead.
    """
    store = Store(out)
    rows = select_rows(store, only)
    if target.suffix in SUFFIXES:
        write_rows(rows, target)
    else:
        export_rows(store, Store(target), rows)
    console.show(f"{target}: {len(rows)} rows")


@options.command(app, "results verify leaderboards/mine --sample 3")
def verify(
    folder: Annotated[Path, typer.Argument(help="Folder that was exported.", metavar="FOLDER", show_default=False)],
    *,
    sample: options.Sample = 3,
    seed: options.Seed = 0,
    out: options.Out = Path("reproduced"),
    tolerance: options.Tolerance = None,
    gpus: options.Gpus = "auto",
    data: options.Data = None,
    offline: options.Offline = False,
) -> None:
    """Check a submission: all of its rows that can be computed again; then train some of its cells again.

    Each problem is one line, `file:line: what`; docs/trust.md says what is checked, and what cannot be known. The cells
    of the sample are drawn at random from the rows without a problem, and compared as by `fcilbench reproduce`, and in
    their mean. A clean verdict says what it rests on.
    Exit codes: 0; 3 if there is a problem; 5 if a cell of the sample cannot run here.
    """
    verified = verify_folder(
        folder,
        out,
        sample=sample,
        seed=seed,
        tolerance=parse_tolerances(tolerance),
        gpus=gpus,
        offline=offline,
        screen=SCREEN,
        show=lambda problem: console.show([problem]),
    )
    if verified.broken_off:
        raise typer.Exit(verified.broken_off)
    console.say(f"{folder}: {verified.verdict}")
    if verified.problems:
        raise typer.Exit(CELLS_FAILED)


@options.command(app, "results sync mlflow --tracking mlflow=http://tracking:5000")
def sync(
    tracker: Annotated[
        str,
        typer.Argument(help="Tracker; see `fcilbench plugins list --kind trackers`.", autocompletion=complete.trackers),
    ] = "mlflow",
    out: options.Out = options.RESULTS,
    tracking: options.Tracking = None,
) -> None:
    """Send every row of a results folder to a tracker; rows that it already has stay unchanged.

    Exit codes: 0; 3 if the tracker lost rows.
    """
    store = Store(out)
    _, uri = parse_tracking(tracking)
    report = sync_store(store, open_tracker(tracker, store, uri=uri))
    console.show(f"{tracker}: {report.logged} rows logged, {report.present} there already, {report.lost} lost")
    if report.lost:
        raise typer.Exit(CELLS_FAILED)


def _lines(conflict: Conflict) -> list[str]:
    word, row = "conflict" if conflict.found.conflicting else "another model", conflict.kept
    lines = [
        f"{word} {row.cell_id[:12]} {cell_name(row.coords)}",
        f"  kept  {conflict.kept_from} ({row.env})",
        f"  other {conflict.other_from} ({conflict.other.env})",
    ]
    for each in conflict.found.differences:
        lines.append(f"  {each.metric}: kept {each.kept}, other {each.other}, tolerance {each.tolerance:g}")
    digests = {f"{name} digest": pair for name, pair in conflict.found.digests.items()}
    pairs = {**digests, **conflict.environment}
    return lines + [f"  {key}: kept {kept}, other {other}" for key, (kept, other) in pairs.items()]


def _as_json(conflict: Conflict) -> dict[str, Any]:
    return {
        "cell_id": conflict.kept.cell_id,
        "coords": conflict.kept.coords,
        "kept": {"from": str(conflict.kept_from), "env": conflict.kept.env},
        "other": {"from": str(conflict.other_from), "env": conflict.other.env},
        "differences": [vars(each) for each in conflict.found.differences],
        "digests": conflict.found.digests,
        "environment": conflict.environment,
    }
