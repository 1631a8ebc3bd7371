"""The boards of a results folder, with notes on the origin of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fcilbench.boards.model import Board
from fcilbench.boards.notes import Here, coverage_notes, origin_notes
from fcilbench.boards.paper import PaperFigures
from fcilbench.boards.records import environment_of, is_printable
from fcilbench.boards.render import render
from fcilbench.boards.tuning import tuning_notes
from fcilbench.errors import PluginError
from fcilbench.registry.entrypoints import PluginRef, blaming, load, lookup
from fcilbench.results.agreement import computed_rows
from fcilbench.results.compare import environment_difference
from fcilbench.results.provenance import environment, software, source_state
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row
from fcilbench.suite.select import missing_cells

REPORT = ("accuracy", "overhead", "robustness")
"""Boards of the HTML report."""
_SHOWN = 4
"""Differences between environments that a note names."""


def build_boards(
    names: Iterable[str],
    rows: Sequence[Row],
    store: Store,
    planned: Mapping[str, Cell] | None = None,
    paper: PaperFigures | None = None,
    *,
    portable: bool = False,
) -> dict[str, Any]:
    """Builds boards by their plugin names, with notes on missing cells and the origin of the rows.

    Without a plan the rows are the plan. Rows get a warning where their tuning was not that of the others. `portable`
    boards compare the rows with this checkout's code, and neither with its commit nor with this machine: everyone who
    has the code gets the same boards.
    """
    missing = missing_cells(planned, {row.cell_id for row in rows}) if planned else None
    every, rows = len(rows), [row for row in rows if is_printable(row)]
    odd = [f"{n} rows are left out: `fcilbench results verify` says what is wrong"] if (n := every - len(rows)) else []
    here, boards = _here(rows, store, portable), {}
    suites = {digest: store.suite(digest) for digest in {row.suite_digest for row in rows} if digest}
    rows, tuning = tuning_notes(rows, suites)
    lacking = coverage_notes(rows, suites) if portable else ()
    more = (*([missing] if missing else []), *odd, *lacking, *tuning, *origin_notes(rows, here))
    for name in names:
        built = _build(lookup("boards", name), rows, planned, here, paper)
        told = built.notes
        if name == "robustness" and not built.blocks:
            told = ("no stressed cells: the suite's `grid: {stress: [...]}` makes them, e.g. [none, dropout]",)
        boards[name] = built.model_copy(update={"notes": (*told, *more)})
    return boards


def _build(
    ref: PluginRef,
    rows: Sequence[Row],
    planned: Mapping[str, Cell] | None,
    here: Here,
    paper: PaperFigures | None,
) -> Board:
    """Returns a board by its plugin; what a third party's board does wrong is told as its own fault."""
    plugin: Any = load(ref)
    with blaming(ref):
        built = plugin().build(rows, planned, here, paper)
        if not isinstance(built, Board):
            raise PluginError(f"board {ref.name}: build returned {type(built).__name__}, not a Board")
        if ref.dist != "fcilbench":
            render(built)  # a figure that a column promises may be missing
    return built


def _here(rows: Sequence[Row], store: Store, portable: bool) -> Here:
    own, environments = environment(), {}
    records = {env: environment_of(store, env) for env in {row.env for row in rows}}
    for env, record in records.items():
        if record is not None:
            plugins = (each.name for row in rows if row.env == env for each in row.plugins.values())
            dists = {"fcilbench", *(name.partition("/")[0] for name in plugins)}
            found = {} if portable else environment_difference(software(record, dists), software(own, dists))
            parts = [f"{key} {there or 'none'} | {here or 'none'}" for key, (there, here) in found.items()]
            more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
            environments[env] = ", ".join(parts[:_SHOWN]) + more
    computed = computed_rows((row for row in rows if row.status == "ok"), records)
    return Here(None if portable else source_state()[0], stale_rows(rows), environments, computed)
