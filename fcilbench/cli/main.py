"""The `fcilbench` command: puts verbs and groups together and turns errors into exit codes."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from fcilbench import __version__
from fcilbench.cli import (
    board,
    check,
    console,
    data,
    doctor,
    module,
    options,
    plan,
    plugins,
    reproduce,
    results,
    run,
    show,
    tune,
)

_EPILOG = (
    "Exit codes: 0 all selected cells ok, 1 internal error, 2 usage or invalid suite, 3 finished but some cells are "
    "not ok, 4 nothing selected, 5 prerequisite missing (data, GPU, plugin), 130 interrupted."
)

app = typer.Typer(
    name="fcilbench",
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


_VERBS = (
    (run.run, "run suites/quickstart.yaml --jobs 2"),
    (plan.plan, "plan suites/quickstart.yaml --only aggregator:sum"),
    (check.check, "check suites/quickstart.yaml --deep"),
    (board.board, "board accuracy --out results -o board.md"),
    (board.figure, "figure curves --out results -o curves.pdf"),
    (board.site, "site leaderboards"),
    (show.show, "show 9f2c --out results"),
    (reproduce.reproduce, "reproduce 9f2c --from leaderboards/small-tuned"),
    (check.schema, "schema suite"),
    (doctor.doctor, "doctor suites/quickstart.yaml"),
)
for _verb, _example in _VERBS:
    options.command(app, _example)(_verb)
for _group in (tune, plugins, data, results, module):
    app.add_typer(_group.app, name=_group.__name__.rpartition(".")[2])


def main() -> None:
    """Runs the command line of this process; ends it with one of the documented exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks must not end a run
    try:
        app()
    except Exception as error:
        sys.exit(console.report(error))
