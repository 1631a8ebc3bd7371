"""The boards of a results folder, with notes on the origin of its rows; and the pages of a folder of leaderboards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fcilbench.boards.model import Board
from fcilbench.boards.notes import Here, coverage_notes, origin_notes
from fcilbench.boards.paper import PaperFigures
from fcilbench.boards.prose import TEMPLATE, read_template, render_prose
from fcilbench.boards.quotes import Leaderboard
from fcilbench.boards.records import environment_of, is_printable, read_suite
from fcilbench.boards.render import render
from fcilbench.boards.report import render_index, render_report
from fcilbench.boards.tuning import tuning_notes
from fcilbench.errors import NothingSelectedError, PluginError
from fcilbench.escape import escape_markdown, markdown_paragraph, page_link
from fcilbench.files import write_atomic
from fcilbench.registry.entrypoints import PluginRef, blaming, load, lookup
from fcilbench.results.agreement import computed_by
from fcilbench.results.compare import environment_difference
from fcilbench.results.provenance import environment, software, source_state
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row
from fcilbench.suite.select import missing_cells
from fcilbench.tables import Link, markdown

REPORT = ("accuracy", "overhead", "robustness")
"""Boards of the HTML report."""
_SHOWN = 4
"""Differences between environments that a note names."""
_HEADS = ("leaderboard", "what", "methods", "seeds", "ok", "computed", "code")
_MADE = "Made from `rows.jsonl` by `fcilbench site`; `index.html` adds charts and every cell.\n"
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


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
    lacking = coverage_notes(rows, suites.values()) if portable else ()
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
    computed = {row.cell_id: computed_by(row, records[row.env]) for row in rows if row.status == "ok"}
    return Here(None if portable else source_state()[0], stale_rows(rows), environments, computed)


def write_site(folder: Path) -> int:
    """Writes the pages of each leaderboard in a folder, and an index of them; returns their number.

    The index is `index.html`, and the folder's `README.md`: made from `README.md.jinja` if there is one
    (`fcilbench.boards.prose`), or else the table in it if it has one.

    Raises:
        NothingSelectedError: If no subfolder has rows.
        UsageError: If the template is wrong, or claims what the rows do not bear out; `README.md` stays as it was.
    """
    # A link could lead the pages into another folder, and what it names onto them.
    paths = [path for path in sorted(folder.glob("*/rows.jsonl")) if path.is_file()]
    stores = [Store(path.parent) for path in paths if not (path.is_symlink() or path.parent.is_symlink())]
    pages = [page for store in stores if (page := _write_pages(store))]
    if not pages:
        raise NothingSelectedError(
            f"no rows in {folder}/*/", hint="`fcilbench results export` writes such a folder; links are not followed"
        )
    lines = [line for line, _ in pages]
    write_atomic(folder / "index.html", render_index("Leaderboards", _HEADS, lines))
    linked = [(Link(name, page_link(name, "README.md")), *facts) for name, *facts in lines]
    table = "\n".join(markdown(_HEADS, linked, range(2, 5)))
    readme, template = folder / "README.md", read_template(folder)
    if template is not None:
        prose = render_prose(template, [own for _, own in pages], table, folder / TEMPLATE)
        write_atomic(readme, prose)
    elif readme.is_file():
        write_atomic(readme, _TABLE.sub(lambda _: f"{table}\n", readme.read_text(encoding="utf-8")))
    return len(lines)


def _write_pages(store: Store) -> tuple[tuple[str, ...], Leaderboard] | None:
    """Writes the pages of one leaderboard; returns its line of the index and what it holds.

    `None` if no row can be printed.
    """
    rows, name = list(store.latest().values()), store.root.name
    if not any(map(is_printable, rows)):
        return None
    built = {name: b for name, b in build_boards(REPORT, rows, store, portable=True).items() if b.blocks}
    boards = list(built.values())
    suites = {digest: store.suite(digest) for digest in sorted({row.suite_digest or "" for row in rows})}
    # A suite that was changed between two runs of its cells has the description of the last.
    newest = {row.suite: read_suite(suites[row.suite_digest or ""]) for row in sorted(rows, key=lambda row: row.ended)}
    about = "; ".join(dict.fromkeys(suite.description for suite in newest.values() if suite and suite.description))
    head = [f"# {escape_markdown(name)}", "", markdown_paragraph(about), "", _MADE]
    write_atomic(store.root / "README.md", "\n".join([*head, *(render(board, "md") for board in boards)]))
    write_atomic(store.root / "index.html", render_report(boards, rows, store, title=name))
    counts = Counter(row.status for row in rows)
    stale = sum(entry.stale for board in boards[:1] for block in board.blocks for entry in block.entries)
    line = (
        name,
        about or "; ".join(dict.fromkeys(block.heading for board in boards[:1] for block in board.blocks)),
        str(len({row.coords.get("aggregator", "") for row in rows})),
        str(len({row.seed for row in rows})),
        f"{counts['ok']}/{len(rows)}{', of a part of the suite' * bool(coverage_notes(rows, suites.values()))}",
        f"{max(row.ended for row in rows):%Y-%m-%d}",
        f"older ({stale} rows)" if stale else "as here",
    )
    read = {digest: suite for digest, raw in suites.items() if (suite := read_suite(raw))}
    return line, Leaderboard(name, {row.cell_id: row for row in rows}, built, read)
