"""`fcilbench board`, `figure` and `site`: the rows of results folders as leaderboards, HTML reports and figures.

What builds boards is imported when it is needed: the shell asks this module for the words that complete a command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcilbench.cli import complete, console, options
from fcilbench.errors import UsageError

if TYPE_CHECKING:
    from fcilbench.results.store import Store
    from fcilbench.spec.cell import Cell
    from fcilbench.spec.row import Row
    from fcilbench.suite.plan import Plan

_SUFFIXES = {".txt": "table", ".md": "md", ".csv": "csv", ".json": "json", ".tex": "tex", ".html": "html", "": None}


def board(
    name: Annotated[
        str,
        typer.Argument(
            help="accuracy, overhead, robustness, or a plugin's board.",
            metavar="NAME",
            show_default=False,
            autocompletion=complete.boards,
        ),
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
    partition: options.Partition = False,
) -> None:
    """Print a board of the rows in a results folder, or write it to a file.

    With --suite the board holds the cells that the suite plans, counts those without a row as missing, and names the
    shards that have none; without it, all rows of the folder. Notes name the rows from other code, commits or
    environments than this checkout. The html form is one file with all three boards, charts and every cell.
    """
    from fcilbench.boards.folder import REPORT, build_boards
    from fcilbench.boards.paper import PaperFigures
    from fcilbench.boards.render import render
    from fcilbench.files import write_atomic
    from fcilbench.pages.report import render_report
    from fcilbench.registry.entrypoints import find, lookup
    from fcilbench.results.chosen import select_rows
    from fcilbench.results.store import Store
    from fcilbench.workflow.prepare import prepare
    from fcilbench.workflow.survey import spread_of

    if not name:
        raise UsageError(f"name a board: {', '.join(ref.short for ref in find('boards'))}")
    lookup("boards", name)  # before anything else: a typo is not "no rows"
    chosen = _form(form, output)
    names = (name, *(each for each in REPORT if each != name)) if chosen == "html" else (name,)
    store, planned = Store(out), None
    if suite is None:
        rows = select_rows(store, only)
    else:
        rows, planned = _planned(prepare(suite, set_, out, only=only, params=params).plan, store)
    paper = PaperFigures.load(reference) if reference else None
    built = build_boards(names, rows, store, planned, paper)
    if chosen == "html":
        text = render_report(list(built.values()), rows, store, spread=spread_of if partition else None)
    else:
        text = render(built[name], chosen, width=console.WIDTH if output else console.width())
    if output is None:
        console.show(text)
    else:
        write_atomic(output, text)
        console.say(f"wrote {output}")


def _planned(plan: Plan, store: Store) -> tuple[list[Row], dict[str, Cell]]:
    """Returns the rows that a suite's plan has, and the cells that it plans, by id."""
    from fcilbench.results.store import NoRowsError

    rows = list({item.cell_id: item.row for item in plan.items if item.row}.values())
    if not rows:
        raise NoRowsError(store.root)
    return rows, {item.cell_id: item.cell for item in plan.items}


def figure(
    name: Annotated[str, typer.Argument(help="Name of the figure.", metavar="NAME", autocompletion=complete.figures)],
    *,
    output: options.OutputFile,
    out: options.Out = options.RESULTS,
    only: options.Only = None,
    identity: options.Identity = "none",
    of: options.Of = "",
    data: options.Data = None,
) -> None:
    """Draw a figure of the rows in a results folder as .svg, .pdf or .png, sized for a paper's column.

    forest: scores with intervals, best first. bytes: score against bytes. curves: mean accuracy on the tasks seen,
    during tasks too where `runtime.analysis` holds `curve`. matrix, forgetting: of one method, on each task after each
    task. loss: training loss against rounds. diagnostics: what methods log. severity: accuracy by the severity of a
    stressor. sweep: score against a hyperparameter that is the only difference. budget: scores of the tuning studies
    that travelled with the rows, against their rounds. critical-difference: mean ranks over scenarios without stress,
    or over five seeds or more of one of them, with Nemenyi's test. partition: samples of each class at each client, of
    the first seed; it reads the data set.
    """
    from fcilbench.charts.choose import Chosen
    from fcilbench.charts.choose import figure as figure_of
    from fcilbench.charts.draw import check_suffix, write
    from fcilbench.results.chosen import select_rows
    from fcilbench.results.store import Store
    from fcilbench.workflow.survey import spread_of

    assert output is not None  # it has no default
    check_suffix(output)
    store = Store(out)
    shown = figure_of(name, Chosen(store, select_rows(store, only), identity, of, spread_of))
    write(*shown, output)
    console.say(f"wrote {output}")


def site(
    folder: Annotated[Path, typer.Argument(help="Folder whose subfolders hold rows.jsonl.")] = Path("leaderboards"),
) -> None:
    """Write the pages of a folder of leaderboards: two in each subfolder with rows, and an index.

    README.md has the boards as text; index.html is the report, with charts and every cell. The index is index.html and
    README.md of the folder itself, which is made from README.md.jinja if there is one (docs/boards.md). Pages follow
    from the rows and from the code of this checkout, whose changes make rows stale: the same command writes the same
    pages on every machine.
    """
    from fcilbench.pages.site import write_site

    console.say(f"wrote the pages of {write_site(folder)} leaderboards in {folder}")


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
