"""`fcilbench run`: trains the cells of a suite that have no valid row, and prints the boards.

What trains is imported when it is needed: the shell asks this module for the words that complete a command.
"""

from __future__ import annotations

import sys

import typer

from fcilbench.cli import options

_ASK_ABOVE_HOURS = 10.0


def run(
    suite: options.SuiteFile,
    *,
    out: options.Out = options.RESULTS,
    set_: options.Set = None,
    params: options.Params = None,
    only: options.Only = None,
    rerun: options.Rerun = "stale",
    gpus: options.Gpus = "auto",
    jobs: options.Jobs = None,
    executor: options.Executor = "local",
    fail_fast: options.FailFast = False,
    no_wait: options.NoWait = False,
    data: options.Data = None,
    tracking: options.Tracking = None,
    offline: options.Offline = False,
    yes: options.Yes = False,
) -> None:
    """Run a suite: train the cells that have no valid row yet, then print the boards.

    The same command again resumes interrupted cells and keeps finished ones. Each planned cell ends as one row of
    rows.jsonl in the results folder; cells whose data or weights are missing here are left out.
    """
    from fcilbench.cli.terminal import SCREEN, show_run
    from fcilbench.execution.base import RunOptions
    from fcilbench.workflow.train import run as run_suite

    def ask(hours: float) -> None:
        if hours > _ASK_ABOVE_HOURS and not yes and sys.stdin.isatty() and sys.stderr.isatty():
            typer.confirm(f"About {hours:.0f} hours. Go on?", abort=True, err=True)

    ended = run_suite(
        suite,
        out,
        overrides=set_ or (),
        params=params,
        only=only or (),
        rerun=rerun,
        gpus=gpus,
        jobs=jobs,
        options=RunOptions(executor, wait=not no_wait, fail_fast=fail_fast, offline=offline),
        tracking=tracking,
        screen=SCREEN,
        before=ask,
    )
    show_run(ended)
    raise typer.Exit(ended.exit_code)
