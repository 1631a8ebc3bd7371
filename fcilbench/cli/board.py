"""`fcilbench board`: a leaderboard from the rows of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcilbench.cli import console, options
from fcilbench.errors import NothingSelectedError, UsageError

EXAMPLE = "fcilbench board accuracy --out results -o board.md"


def board(
    name: Annotated[str, typer.Argument(help="Board, e.g. accuracy; see `fcilbench plugins list --kind boards`.")],
    *,
    out: options.Out = options.RESULTS,
    suite: options.OfSuite = None,
    set_: options.Set = None,
    only: options.Only = None,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
    output: options.OutputFile = None,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Print a board of the rows in a results folder, or write it to a file.

    With --suite the board holds the cells that the suite plans, those without a row counted as missing; without it,
    all rows of the folder.
    """
    from fcilbench.boards.render import render
    from fcilbench.cli.prepare import build_board, prepare, show_board, use_data_root
    from fcilbench.cli.show import select_rows
    from fcilbench.registry.entrypoints import lookup
    from fcilbench.results.store import Store

    lookup("boards", name)  # before anything else: a typo is not "no rows"
    use_data_root(data)
    chosen = _form(form, output)
    if suite is None:
        planned, rows = None, select_rows(Store(out), only)
    else:
        prepared = prepare(suite, set_, out, only=only)
        planned = {item.cell_id: item.cell for item in prepared.plan.items}
        rows = list(prepared.store.latest().values())
    if not rows:
        raise NothingSelectedError(f"no rows in {out}", hint="`fcilbench run SUITE --out DIR` writes them")
    built = build_board(name, rows, planned)
    if output is not None:
        from fcilbench.files import write_atomic

        write_atomic(output, render(built, chosen, width=console.WIDTH))
        console.say(f"wrote {output}")
    elif chosen == "table":
        show_board(built)
    else:
        console.show(render(built, chosen))


def _form(form: options.Form, output: Path | None) -> str:
    """Returns the form to write: a file's name says it, and must not contradict --format."""
    suffix = output.suffix.lower() if output else ""
    by_name = {".md": "md", ".json": "json", ".txt": "table", "": str(form)}
    if suffix not in by_name:
        raise UsageError(f"-o {output}: no form for {suffix!r} files", hint="end the name in .md, .json or .txt")
    if form is not options.Form.TABLE and by_name[suffix] != form:
        raise UsageError(f"-o {output} contradicts --format {form}", hint="leave one of them out")
    return by_name[suffix]
