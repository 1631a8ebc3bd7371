"""`fcilbench board`, `figure` and `site`: the rows of results folders as leaderboards, HTML reports and figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fcilbench.boards.build import AccuracyBoard
from fcilbench.boards.figures import FIGURES, draw
from fcilbench.boards.notes import Here, coverage_notes, origin_notes, tuning_notes
from fcilbench.boards.reference import Reference
from fcilbench.boards.render import render
from fcilbench.boards.report import render_index, render_report
from fcilbench.cli import console, options
from fcilbench.cli.plan import prepare
from fcilbench.cli.show import select_rows
from fcilbench.errors import NothingSelectedError, UsageError, nearest
from fcilbench.files import write_atomic
from fcilbench.registry import catalog
from fcilbench.registry.entrypoints import find, load, lookup
from fcilbench.results.compare import environment_difference
from fcilbench.results.provenance import environment, software, source_state
from fcilbench.results.store import NoRowsError, Store
from fcilbench.spec.cell import PLUGIN_KINDS, Cell
from fcilbench.spec.row import Row
from fcilbench.suite.select import missing_cells
from fcilbench.tables import markdown

_SUFFIXES = {".txt": "table", ".md": "md", ".csv": "csv", ".json": "json", ".tex": "tex", ".html": "html", "": None}
REPORT = ("accuracy", "overhead", "robustness")
"""Boards of the HTML report."""
_SHOWN = 4
"""Differences between environments that a note names."""
_HEADS = ("leaderboard", "what", "methods", "seeds", "ok", "computed", "code")
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


def board(
    name: Annotated[
        str,
        typer.Argument(help="accuracy, overhead, robustness, or a plugin's board.", metavar="NAME", show_default=False),
    ] = "",
    *,
    out: options.Out = options.RESULTS,
    suite: options.OfSuite = None,
    set_: options.Set = None,
    params: options.Params = None,
    only: options.Only = None,
    data: options.Data = None,
    reference: options.Reference = None,
    form: options.Format = options.Form.TABLE,
    output: options.OutputFile = None,
) -> None:
    """Print a board of the rows in a results folder, or write it to a file.

    With --suite the board holds the cells that the suite plans, counts those without a row as missing, and names the
    shards that have none; without it, all rows of the folder. Notes name the rows from other code, commits or
    environments than this checkout. The html form is one file with all three boards, charts and every cell.
    """
    if not name:
        raise UsageError(f"name a board: {', '.join(ref.short for ref in find('boards'))}")
    lookup("boards", name)  # before anything else: a typo is not "no rows"
    chosen = _form(form, output)
    names = (name, *(each for each in REPORT if each != name)) if chosen == "html" else (name,)
    store, planned = Store(out), None
    if suite is None:
        rows = select_rows(store, only)
    else:
        items = prepare(suite, set_, out, only=only, params=params).plan.items
        planned = {item.cell_id: item.cell for item in items}
        rows = list({item.cell_id: item.row for item in items if item.row}.values())
        if not rows:
            raise NoRowsError(store.root)
    printed = Reference.load(reference) if reference else None
    built = build_boards(names, rows, store, planned, printed)
    if chosen == "html":
        text = render_report(list(built.values()), rows, store)
    else:
        text = render(built[name], chosen, width=console.WIDTH if output else console.width())
    if output is None:
        console.show(text)
    else:
        write_atomic(output, text)
        console.say(f"wrote {output}")


def figure(
    name: Annotated[str, typer.Argument(help="curves, loss, forgetting or critical-difference.")],
    *,
    output: options.OutputFile,
    out: options.Out = options.RESULTS,
    only: options.Only = None,
    identity: options.Identity = "none",
) -> None:
    """Draw a figure of the rows in a results folder as .svg, .pdf or .png, sized for a paper's column.

    curves: mean accuracy on the tasks seen, during tasks too where `runtime.analysis` holds `curve`.
    loss: training loss against rounds. forgetting: what one method lost on each task after each later one.
    critical-difference: mean ranks over scenarios without stress, or over five seeds or more of one of them, with
    Nemenyi's test.
    """
    if name not in FIGURES:
        raise UsageError(f"there is no figure {name!r}{nearest(name, FIGURES)}", hint=f"figures: {', '.join(FIGURES)}")
    store = Store(out)
    assert output is not None  # it has no default
    draw(name, AccuracyBoard().build(select_rows(store, only)), store, identity, output)
    console.say(f"wrote {output}")


def site(
    folder: Annotated[Path, typer.Argument(help="Folder whose subfolders hold rows.jsonl.")] = Path("leaderboards"),
) -> None:
    """Write the pages of a folder of leaderboards: two in each subfolder with rows, and an index.

    README.md has the boards as text; index.html is the report, with charts and every cell. The index is index.html and
    the table in README.md of the folder itself. Pages follow from the rows and from the code of this checkout, whose
    changes make rows stale: the same command writes the same pages on every machine.
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
    console.say(f"wrote the pages of {len(lines)} leaderboards in {folder}")


def _write_pages(store: Store) -> tuple[str, ...]:
    """Writes the pages of one leaderboard and returns its line of the index."""
    rows, name = list(store.latest().values()), store.root.name
    boards = [board for board in build_boards(REPORT, rows, store, portable=True).values() if board.blocks]
    suites = [store.suite(digest) or {} for digest in sorted({row.suite_digest or "" for row in rows})]
    about = "; ".join(dict.fromkeys(suite["description"] for suite in suites if suite.get("description")))
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
    suites = {digest: store.suite(digest) or {} for digest in {row.suite_digest for row in rows} if digest}
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


def _form(form: options.Form, output: Path | None) -> str:
    """Returns the form to write: a file's name says it, and must not contradict --format."""
    suffix = output.suffix.lower() if output else ""
    if suffix not in _SUFFIXES:
        named = ", ".join(each for each in _SUFFIXES if each)
        raise UsageError(f"-o {output}: no form for {suffix!r} files", hint=f"end the name in {named}")
    told = _SUFFIXES[suffix]
    if told is not None and form not in (options.Form.TABLE, told):
        raise UsageError(f"-o {output} contradicts --format {form}", hint="leave one of them out")
    return told or str(form)


def _here(rows: Sequence[Row], store: Store, portable: bool) -> Here:
    used = {(PLUGIN_KINDS[kind], record.name) for row in rows for kind, record in row.plugins.items()}
    refs = [ref for kind in PLUGIN_KINDS.values() for ref in find(kind) if (kind, ref.name) in used]
    digests = {each.ref.name: each.code_digest for each in catalog.describe(refs) if not each.problem}
    own, environments = environment(), {}
    for env in {row.env for row in rows}:
        record = store.environment(env)
        if record is not None:
            plugins = (each.name for row in rows if row.env == env for each in row.plugins.values())
            dists = {"fcilbench", *(name.partition("/")[0] for name in plugins)}
            found = {} if portable else environment_difference(software(record, dists), software(own, dists))
            parts = [f"{key} {there or 'none'} | {here or 'none'}" for key, (there, here) in found.items()]
            more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
            environments[env] = ", ".join(parts[:_SHOWN]) + more
    return Here(None if portable else source_state()[0], digests, environments)
