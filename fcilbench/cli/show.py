"""`fcilbench show`: lists the rows of a results folder, or prints one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fcilbench.cli import console, options
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.tables import flatten

if TYPE_CHECKING:
    from fcilbench.results.store import Store
    from fcilbench.spec.row import Row
    from fcilbench.suite.select import Selector

_RANKING = ("faa",)
"""Metrics in the list of rows."""


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
    if cell is not None:
        _show_cell(store, find_row(store, cell), form, verbose)
        return
    if form in ("json", "jsonl"):
        _show_whole(store, only, form)
        return
    rows = select_rows(store, only, metrics=_RANKING)
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics if name.partition("/")[0] in _RANKING))
    axes = list(dict.fromkeys(axis for row in rows for axis in row.coords))
    table = [
        (
            *(row.cell_id[:12], row.suite, *(row.coords.get(axis, "") for axis in axes), row.status),
            *(_figure(row, name) for name in metrics),
            console.duration(row.cost.wall_s),
        )
        for row in rows
    ]
    headers = ("cell", "suite", *axes, "status", *metrics, "wall")
    first = len(headers) - len(metrics) - 1
    console.show_list(form, headers, table, key="rows", right=range(first, len(headers)))


def select_rows(store: Store, only: Sequence[str] | None, metrics: Collection[str] | None = None) -> list[Row]:
    """Returns the last row of each cell that `--only` selects: light ones with these `metrics`, or whole rows.

    Raises:
        NothingSelectedError: If there is none.
    """
    from fcilbench.suite.select import parse_selectors

    chosen = parse_selectors(only or ())
    latest = store.latest() if metrics is None else store.latest_light(metrics)
    rows = [row for row in latest.values() if chosen.matches(row.cell_id, row.coords, row.status)]
    if not rows:
        raise _nothing(store, chosen)
    return rows


def find_row(store: Store, prefix: str) -> Row:
    """Returns the last row of the one cell whose id begins with `prefix`.

    Raises:
        UsageError: If there is none, or more than one.
    """
    found = {row.cell_id: row for row in store.scan() if row.cell_id.startswith(prefix.lower())}
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise UsageError(f"no cell {prefix} in {store.root}", hint="`fcilbench show` lists the cells")
    raise UsageError(f"{len(found)} cells begin with {prefix}", hint="give more digits of the id")


def _figure(row: Row, name: str) -> str:
    value = row.metrics[name].value if name in row.metrics else None
    return "" if value is None else f"{value:.4f}"


def _nothing(store: Store, chosen: Selector) -> NothingSelectedError:
    """Returns the error of a results folder without rows, or without one that `--only` selects."""
    from fcilbench.results.store import NoRowsError

    coords = [row.coords for row in store.scan()]
    return NothingSelectedError(chosen.why_nothing(str(store.root), coords)) if coords else NoRowsError(store.root)


def _show_whole(store: Store, only: Sequence[str] | None, form: options.Form) -> None:
    """Prints whole rows as JSON; they are kept as texts, which take a tenth of the memory of objects."""
    from fcilbench.suite.select import parse_selectors

    chosen = parse_selectors(only or ())
    texts: dict[str, str] = {}
    for row in store.scan():
        texts.pop(row.cell_id, None)
        # A later row replaces an earlier one, even if it is not selected.
        if chosen.matches(row.cell_id, row.coords, row.status):
            texts[row.cell_id] = _filled(row).to_json()
    if not texts:
        raise _nothing(store, chosen)
    console.show_list(form, (), (), key="rows", records=texts.values())


def _filled(row: Row) -> Row:
    """Returns a row with all metrics that can be computed from its matrices, also those that it does not record."""
    from fcilbench.results.light import all_metrics

    return row.model_copy(update={"metrics": all_metrics(row)})


def _show_cell(store: Store, row: Row, form: options.Form, verbose: bool) -> None:
    plain = _filled(row).model_dump(mode="json", by_alias=True)
    hidden = {"accuracy", "classes", "test_sizes", "metrics", "plugins"}
    table: list[tuple[str, object]] = [
        (path, value)
        for path, value in flatten(plain, lists=True).items()
        if path.partition(".")[0] not in hidden and value not in (None, "", [], {})
    ]
    for name, metric in plain["metrics"].items():
        value = metric["value"]
        table.append((name, "undefined" if value is None else f"{value:.6g} {metric['unit']}"))
    for identity, matrix in row.accuracy.items():
        for number, line in enumerate(matrix, start=1):
            figures = " ".join("  -  " if value is None else f"{value:.3f}" for value in line)
            table.append((f"accuracy/{identity} after task {number}", figures))
    folder = store.cell_dir(row.cell_id)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    table += [("file", folder / name) for name in names if not name.startswith((".", "lease"))]
    headers = () if form == "table" else ("what", "value")
    console.show_list(form, headers, table, key="rows", records=[plain])
    trace = folder / "traceback.txt"
    if verbose and trace.is_file():
        console.show(trace.read_text(encoding="utf-8", errors="replace"))
