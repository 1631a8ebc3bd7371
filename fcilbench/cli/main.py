"""The `fcilbench` command: puts verbs and groups together and turns errors into exit codes."""

from __future__ import annotations

import io
import sys
from typing import Annotated, ClassVar

import typer

from fcilbench import __version__
from fcilbench.cli import console
from fcilbench.cli.lazy import LazyGroup, Verb

_EPILOG = (
    "Exit codes: 0 all selected cells ok, 1 internal error, 2 usage or invalid suite, 3 finished but some cells are "
    "not ok, 4 nothing selected, 5 prerequisite missing (data, GPU, plugin), 130 interrupted."
)


class Verbs(LazyGroup):
    """The verbs and groups of verbs, in the order of the help."""

    verbs: ClassVar = {
        "run": Verb(
            "fcilbench.cli.run:run",
            "Run a suite: train the cells that have no valid row yet, then print the boards.",
            "run suites/quickstart.yaml --jobs 2",
        ),
        "status": Verb(
            "fcilbench.cli.status:status",
            "Show how far the runs of a results folder are: done, running, failed, waiting, rate and time left.",
            "status --out results --watch",
        ),
        "plan": Verb(
            "fcilbench.cli.plan:plan",
            "Show which cells are new, done, stale (and why) or failed, and what a run would cost. Writes nothing.",
            "plan suites/quickstart.yaml --only aggregator:sum",
        ),
        "check": Verb(
            "fcilbench.cli.check:check",
            "Check a suite without running it, and print which checks ran and what each of them proves.",
            "check suites/quickstart.yaml --deep",
        ),
        "board": Verb(
            "fcilbench.cli.board:board",
            "Print a board of the rows in a results folder, or write it to a file.",
            "board accuracy --out results -o board.md",
        ),
        "figure": Verb(
            "fcilbench.cli.board:figure",
            "Draw a figure of the rows in a results folder as .svg, .pdf or .png, sized for a paper's column.",
            "figure curves --out results -o curves.pdf",
        ),
        "site": Verb(
            "fcilbench.cli.board:site",
            "Write the pages of a folder of leaderboards: two in each subfolder with rows, and an index.",
            "site leaderboards",
        ),
        "show": Verb(
            "fcilbench.cli.show:show",
            "List the rows of a results folder, or print one cell: parameters, metrics, cost, failure, files.",
            "show 9f2c --out results",
        ),
        "reproduce": Verb(
            "fcilbench.cli.reproduce:reproduce",
            "Train one cell of a results folder on this machine, from its row, and compare the results.",
            "reproduce 9f2c --from leaderboards/small-tuned",
        ),
        "schema": Verb(
            "fcilbench.cli.check:schema",
            "Print the JSON Schema of a suite (for editors) or of a result row.",
            "schema suite",
        ),
        "doctor": Verb(
            "fcilbench.cli.doctor:doctor",
            "Report python, torch, GPUs, plugins, data, disk, tracking and source; with a suite, whether it will run "
            "here.",
            "doctor suites/quickstart.yaml",
        ),
        "tune": Verb(
            "fcilbench.cli.tune:app",
            "Tune the methods of a suite at equal budgets. `tune SUITE` is short for `tune start SUITE`.",
        ),
        "plugins": Verb("fcilbench.cli.plugins:app", "List, describe, test and start plugins."),
        "data": Verb("fcilbench.cli.data:app", "List, fetch, verify and inspect data sets."),
        "results": Verb("fcilbench.cli.results:app", "Merge, export, verify and track results folders."),
        "module": Verb("fcilbench.cli.module:app", "Write and read the deployable module of a finished cell."),
    }


app = typer.Typer(
    name="fcilbench",
    cls=Verbs,
    help="A declarative benchmark suite for Federated Class-Incremental Learning.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fcilbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    console.log_to_stderr()


def main() -> None:
    """Runs the command line of this process; ends it with one of the documented exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks must not end a run
    try:
        app()
    except Exception as error:
        sys.exit(console.report(error))
