"""`fcilbench show`: lists the rows of a results folder, or prints one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fcilbench.cli import console, options
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.files import neighbour
from fcilbench.results.row import all_metrics, metric_values
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import NoRowsError, Store
from fcilbench.spec.row import Row
from fcilbench.suite.plan import state_of
from fcilbench.suite.select import parse_selectors
from fcilbench.tables import flatten


def show(
    cell: Annotated[str | None, typer.Argument(help="First digits of a cell's id.", metavar="[CELL]")] = None,
    out: options.Out = options.RESULTS,
    only: options.Only = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """List the rows of a results folder, or print one cell: parameters, metrics, cost, failure, files."""
    store = Store(out)
    rows = select_rows(store, only) if cell is None else [find_row(store, cell)]
    if cell is not None or form in ("json", "jsonl"):
        rows = [row.model_copy(update={"metrics": all_metrics(row)}) for row in rows]
    if cell is not None:
        _show_cell(store, rows[0], form)
        return
    axes = list(dict.fromkeys(axis for row in rows for axis in row.coords))
    figures = [metric_values(row, ("faa",)) for row in rows]
    metrics = list(dict.fromkeys(name for own in figures for name in own))
    table = [
        (
            *(row.cell_id[:12], row.suite, *(row.coords.get(axis, "") for axis in axes), row.status),
            *("" if (own := found.get(name)) is None or own.value is None else f"{own.value:.4f}" for name in metrics),
            console.duration(row.cost.wall_s),
        )
        for row, found in zip(rows, figures, strict=True)
    ]
    headers = ("cell", "suite", *axes, "status", *metrics, "wall")
    right = range(len(headers) - len(metrics) - 1, len(headers))
    records = (row.to_json() for row in rows)
    console.show_list(form, headers, table, key="rows", records=records, right=right)


def select_rows(store: Store, only: Sequence[str] | None) -> list[Row]:
    """Returns the last row of each cell that `--only` selects.

    Raises:
        NothingSelectedError: If there is none.
    """
    chosen, latest = parse_selectors(only or ()), store.latest().values()
    stale = stale_rows(latest) if chosen.statuses else {}
    states = {row.cell_id: state_of(row, stale.get(row.cell_id, ()))[0] for row in latest}
    rows = [row for row in latest if chosen.matches(row.cell_id, row.coords, row.status, states[row.cell_id])]
    if not latest:
        raise NoRowsError(store.root)
    if not rows:
        raise NothingSelectedError(chosen.why_nothing(str(store.root), [row.coords for row in latest]))
    return rows


def find_row(store: Store, prefix: str) -> Row:
    """Returns the last row of the one cell whose id begins with `prefix`.

    Raises:
        UsageError: If there is none, or more than one, or no such folder.
    """
    if not store.root.is_dir():
        raise UsageError(f"folder {store.root} does not exist{neighbour(store.root)}")
    found = [row for cell_id, row in store.latest().items() if cell_id.startswith(prefix.lower())]
    if not found:
        raise UsageError(f"no cell {prefix} in {store.root}", hint="`fcilbench show` lists the cells")
    if len(found) > 1:
        raise UsageError(f"{len(found)} cells begin with {prefix}", hint="give more digits of the id")
    return found[0]


def _show_cell(store: Store, row: Row, form: options.Form) -> None:
    plain = row.model_dump(mode="json", by_alias=True)
    hidden = {"accuracy", "classes", "test_sizes", "metrics", "plugins"}
    table: list[tuple[str, object]] = [
        (path, value)
        for path, value in flatten(plain, lists=True).items()
        if path.partition(".")[0] not in hidden and value not in (None, "", [], {})
    ]
    for name, metric in row.metrics.items():
        table.append((name, "undefined" if metric.value is None else f"{metric.value:.6g} {metric.unit}"))
    for identity, matrix in row.accuracy.items():
        for number, line in enumerate(matrix, start=1):
            figures = " ".join("  -  " if value is None else f"{value:.3f}" for value in line)
            table.append((f"accuracy/{identity} after task {number}", figures))
    folder = store.cell_dir(row.cell_id)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    table += [("file", folder / name) for name in names if not name.startswith((".", "lease"))]
    headers = () if form == "table" else ("what", "value")
    console.show_list(form, headers, table, key="rows", records=[plain])
    trace = store.cell_file(row.cell_id, "traceback.txt")
    if console.state.verbose and trace is not None:
        console.show(trace.read_text(encoding="utf-8", errors="replace"))
