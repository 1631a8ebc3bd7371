"""`fcilbench show`: lists the rows of a results folder, or prints one."""

from __future__ import annotations

from typing import Annotated

import typer

from fcilbench.cli import complete, console, options
from fcilbench.results.chosen import find_row, select_rows
from fcilbench.results.row import all_metrics, metric_values
from fcilbench.results.store import Store
from fcilbench.spec.row import Row
from fcilbench.tables import duration, flatten


def show(
    cell: Annotated[
        str | None,
        typer.Argument(help="First digits of a cell's id.", metavar="[CELL]", autocompletion=complete.cells),
    ] = None,
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
            duration(row.cost.wall_s),
        )
        for row, found in zip(rows, figures, strict=True)
    ]
    headers = ("cell", "suite", *axes, "status", *metrics, "wall")
    right = range(len(headers) - len(metrics) - 1, len(headers))
    records = (row.to_json() for row in rows)
    console.show_list(form, headers, table, key="rows", records=records, right=right)


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
