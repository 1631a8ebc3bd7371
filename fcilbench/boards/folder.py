"""The boards of a results folder, with notes on the origin of its rows; and the pages of a folder of leaderboards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fcilbench.boards.notes import Here, coverage_notes, origin_notes, tuning_notes
from fcilbench.boards.reference import Reference
from fcilbench.boards.render import render
from fcilbench.boards.report import render_index, render_report
from fcilbench.errors import NothingSelectedError
from fcilbench.files import write_atomic
from fcilbench.registry import catalog
from fcilbench.registry.entrypoints import find, load, lookup
from fcilbench.results.compare import environment_difference
from fcilbench.results.provenance import environment, software, source_state
from fcilbench.results.records import environment_of, suite_of
from fcilbench.results.store import Store
from fcilbench.spec.cell import PLUGIN_KINDS, Cell
from fcilbench.spec.row import Row
from fcilbench.suite.select import missing_cells
from fcilbench.tables import markdown

REPORT = ("accuracy", "overhead", "robustness")
"""Boards of the HTML report."""
_SHOWN = 4
"""Differences between environments that a note names."""
_HEADS = ("leaderboard", "what", "methods", "seeds", "ok", "computed", "code")
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


def build_boards(
    names: Iterable[str],
    rows: Sequence[Row],
    store: Store,
    planned: Mapping[str, Cell] | None = None,
    reference: Reference | None = None,
    *,
    portable: bool = False,
) -> dict[str, Any]:
    """Builds boards by their plugin names, with notes on missing cells and the origin of the rows.

    Without a plan the rows are the plan. Rows get a warning where their tuning was not that of the others. `portable`
    boards compare the rows with this checkout's code, and neither with its commit nor with this machine: everyone who
    has the code gets the same boards.
    """
    missing = missing_cells(planned, {row.cell_id for row in rows}) if planned else None
    here, boards = _here(rows, store, portable), {}
    suites = {digest: suite_of(store, digest) for digest in {row.suite_digest for row in rows} if digest}
    rows, tuning = tuning_notes(rows, suites)
    lacking = coverage_notes(rows, suites.values()) if portable else ()
    more = (*([missing] if missing else []), *lacking, *tuning, *origin_notes(rows, here))
    for name in names:
        plugin: Any = load(lookup("boards", name))
        built = plugin().build(rows, planned, here, reference)
        told = built.notes
        if name == "robustness" and not built.blocks:
            told = ("no stressed cells: the suite's `grid: {stress: [...]}` makes them, e.g. [none, dropout]",)
        boards[name] = built.model_copy(update={"notes": (*told, *more)})
    return boards


def _here(rows: Sequence[Row], store: Store, portable: bool) -> Here:
    used = {(PLUGIN_KINDS[kind], record.name) for row in rows for kind, record in row.plugins.items()}
    refs = [ref for kind in PLUGIN_KINDS.values() for ref in find(kind) if (kind, ref.name) in used]
    digests = {each.ref.name: each.code_digest for each in catalog.describe(refs) if not each.problem}
    own, environments = environment(), {}
    for env in {row.env for row in rows}:
        record = environment_of(store, env)
        if record is not None:
            plugins = (each.name for row in rows if row.env == env for each in row.plugins.values())
            dists = {"fcilbench", *(name.partition("/")[0] for name in plugins)}
            found = {} if portable else environment_difference(software(record, dists), software(own, dists))
            parts = [f"{key} {there or 'none'} | {here or 'none'}" for key, (there, here) in found.items()]
            more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
            environments[env] = ", ".join(parts[:_SHOWN]) + more
    return Here(None if portable else source_state()[0], digests, environments)


def write_site(folder: Path) -> int:
    """Writes the pages of each leaderboard in a folder, and an index of them; returns their number.

    The index is `index.html`, and the table in the folder's `README.md` if it has one.

    Raises:
        NothingSelectedError: If no subfolder has rows.
    """
    stores = [Store(path.parent) for path in sorted(folder.glob("*/rows.jsonl"))]
    if not stores:
        raise NothingSelectedError(f"no rows in {folder}/*/", hint="`fcilbench results export` writes such a folder")
    lines = [_write_pages(store) for store in stores]
    write_atomic(folder / "index.html", render_index("Leaderboards", _HEADS, lines))
    readme = folder / "README.md"
    if readme.is_file():
        head, rule, *rows = markdown(_HEADS, lines, range(2, 5))
        linked = [re.sub(r"^\| (\S+)", r"| [\1](\1/README.md)", row) for row in rows]
        table = "\n".join([head, rule, *linked]) + "\n"
        write_atomic(readme, _TABLE.sub(lambda _: table, readme.read_text(encoding="utf-8")))
    return len(lines)


def _write_pages(store: Store) -> tuple[str, ...]:
    """Writes the pages of one leaderboard and returns its line of the index."""
    rows, name = list(store.latest().values()), store.root.name
    boards = [board for board in build_boards(REPORT, rows, store, portable=True).values() if board.blocks]
    suites = [suite_of(store, digest) for digest in sorted({row.suite_digest or "" for row in rows})]
    # A suite that was changed between two runs of its cells has the description of the last.
    newest = {row.suite: suite_of(store, row.suite_digest) for row in sorted(rows, key=lambda row: row.ended)}
    about = "; ".join(dict.fromkeys(suite["description"] for suite in newest.values() if suite.get("description")))
    head = (
        f"# {name}\n\n{about}\n\nMade from `rows.jsonl` by `fcilbench site`; `index.html` adds charts and every cell.\n"
    )
    write_atomic(store.root / "README.md", "\n".join([head, *(render(board, "md") for board in boards)]))
    write_atomic(store.root / "index.html", render_report(boards, rows, store, title=name))
    counts = Counter(row.status for row in rows)
    stale = sum(entry.stale for block in boards[0].blocks for entry in block.entries)
    return (
        name,
        about or "; ".join(dict.fromkeys(block.heading for block in boards[0].blocks)),
        str(len({row.coords["aggregator"] for row in rows})),
        str(len({row.seed for row in rows})),
        f"{counts['ok']}/{len(rows)}{', of a part of the suite' * bool(coverage_notes(rows, suites))}",
        f"{max(row.ended for row in rows):%Y-%m-%d}",
        f"older ({stale} rows)" if stale else "as here",
    )
