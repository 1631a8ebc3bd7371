"""`fcilbench show`: the rows of a results folder, or one of them in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.errors import NothingSelectedError, UsageError

if TYPE_CHECKING:
    from fcilbench.results.store import Store
    from fcilbench.spec.row import Row

EXAMPLE = "fcilbench show 9f2c --out results"


def show(
    cell: Annotated[str | None, typer.Argument(help="First digits of a cell's id.", metavar="[CELL]")] = None,
    out: options.Out = options.RESULTS,
    only: options.Only = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,
) -> None:
    """List the rows of a results folder, or print one cell: parameters, metrics, cost, failure, files."""
    from fcilbench.results.store import Store

    store = Store(out)
    if cell is None:
        rows = select_rows(store, only)
        if not rows:
            raise NothingSelectedError(f"no rows in {out}", hint="`fcilbench run SUITE --out DIR` writes them")
        if form is options.Form.JSON:
            console.show_json({"schema": 1, "rows": [_plain(row) for row in rows]})
        else:
            _print_rows(rows, form)
        return
    row = find_row(store, cell)
    if form is options.Form.JSON:
        console.show_json({"schema": 1, "rows": [_plain(row)]})
    else:
        _print_cell(store, row, form, verbose)


def select_rows(store: Store, only: Sequence[str] | None) -> list[Row]:
    """Returns the last row of each cell that `--only` selects, in the order of the file."""
    from fcilbench.suite.select import parse_selectors

    chosen = parse_selectors(only or ())
    return [row for row in store.latest().values() if chosen.matches(row.coords, row.status)]


def find_row(store: Store, prefix: str) -> Row:
    """Returns the last row of the one cell whose id begins with `prefix`.

    Raises:
        UsageError: If there is none, or more than one.
    """
    rows = store.latest()
    found = [row for cell_id, row in rows.items() if cell_id.startswith(prefix.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no cell {prefix} in {store.root}", hint="`fcilbench show` lists the cells")
    raise UsageError(f"{len(found)} cells begin with {prefix}", hint="give more digits of the id")


def _plain(row: Row) -> dict[str, Any]:
    return row.model_dump(mode="json", by_alias=True)


def _print_rows(rows: Sequence[Row], form: options.Form) -> None:
    from fcilbench.cli.prepare import duration

    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics if name.startswith("faa/")))
    axes = list(dict.fromkeys(axis for row in rows for axis in row.coords))
    table = []
    for row in rows:
        values = [row.metrics[name].value if name in row.metrics else None for name in metrics]
        figures = ["" if value is None else f"{value:.4f}" for value in values]
        coords = [row.coords.get(axis, "") for axis in axes]
        table.append((row.cell_id[:12], row.suite, *coords, row.status, *figures, duration(row.cost.wall_s)))
    console.show_rows(("cell", "suite", *axes, "status", *metrics, "wall"), table, form)


def _print_cell(store: Store, row: Row, form: options.Form, verbose: bool) -> None:
    from fcilbench.cli.plan import flatten

    hidden = {"accuracy", "classes", "test_sizes", "metrics", "plugins"}
    table: list[tuple[str, object]] = [
        (path, value)
        for path, value in flatten(_plain(row)).items()
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
    console.show_rows(("what", "value") if form is options.Form.MD else (), table, form)
    trace = folder / "traceback.txt"
    if verbose and trace.is_file():
        console.show(trace.read_text(encoding="utf-8", errors="replace"))
