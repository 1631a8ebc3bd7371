"""`fcilbench run`: trains what is missing and prints the boards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from fcilbench.cli import console, options
from fcilbench.errors import OK, PREREQUISITE, NothingSelectedError, PrerequisiteError

if TYPE_CHECKING:
    from fcilbench.cli.prepare import Prepared
    from fcilbench.execution.ledger import Summary
    from fcilbench.execution.observers import Progress
    from fcilbench.tracking.base import Tracker

EXAMPLE = "fcilbench run suites/quickstart.yaml --jobs 2"
_ASK_ABOVE_HOURS = 10.0


def run(
    suite: options.SuiteFile,
    *,
    out: options.Out = options.RESULTS,
    set_: options.Set = None,
    only: options.Only = None,
    rerun: options.Rerun = "stale",
    gpus: options.Gpus = "auto",
    jobs: options.Jobs = None,
    fail_fast: options.FailFast = False,
    data: options.Data = None,
    tracking: options.Tracking = None,
    offline: options.Offline = False,
    yes: options.Yes = False,
    quiet: options.Quiet = False,  # noqa: ARG001 - its callback acts
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Run a suite: train the cells that have no valid row yet, then print the boards.

    The same command again resumes what broke off and repeats nothing that is done. Each planned cell ends as one row
    of rows.jsonl in the results folder.
    """
    from fcilbench.cli.plan import print_plan, slots_per_device
    from fcilbench.cli.prepare import prepare, use_data_root
    from fcilbench.execution.base import RunOptions
    from fcilbench.execution.devices import choose_devices
    from fcilbench.execution.run import run_plan

    root = use_data_root(data)
    devices = choose_devices(gpus)
    prepared = prepare(suite, set_, out, only=only, rerun=rerun, devices=devices)
    plan = prepared.plan
    jobs = slots_per_device(prepared, devices, jobs)
    if not console.state.quiet:
        print_plan(prepared, slots=len(devices) * jobs, to=console.err())
    if not plan.items:
        if plan.expansion.prerequisites:
            raise PrerequisiteError(
                f"no cell can run: {'; '.join(plan.expansion.prerequisites)}", hint="`fcilbench doctor SUITE` says more"
            )
        raise NothingSelectedError("no cell is selected", hint="look at --only and at the suite's exclude rules")
    _ask(prepared, len(devices) * jobs, yes)
    settings = RunOptions(devices=tuple(devices), jobs=jobs, fail_fast=fail_fast, data_root=root, offline=offline)
    trackers = _trackers(prepared, tracking) if plan.todo else []
    summary = run_plan(plan, prepared.store, trackers, _progress(), settings)
    _print_boards(prepared, summary)
    _print_summary(prepared, summary)
    code = summary.exit_code
    raise typer.Exit(PREREQUISITE if code == OK and plan.expansion.blocked else code)


def _ask(prepared: Prepared, slots: int, yes: bool) -> None:
    hours = prepared.plan.seconds / slots / 3600
    if hours > _ASK_ABOVE_HOURS and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"About {hours:.0f} hours. Go on?", abort=True, err=True)


def _trackers(prepared: Prepared, option: str | None) -> list[Tracker]:
    """Opens the tracker; without it the run goes on, since rows on disk are the truth."""
    from fcilbench.tracking.base import open_tracker

    if option == "none":
        return []
    try:
        return [open_tracker("mlflow", prepared.store, uri=option, warn=_warn)]
    except PrerequisiteError as error:
        _warn(f"not tracked: {error}")
        return []


def _warn(text: str) -> None:
    console.err().print(f"warning: {text}", style="yellow", markup=False)


def _progress() -> Progress:
    from fcilbench.execution.observers import Progress

    if console.state.quiet:
        return Progress()
    if console.err().is_terminal:
        from fcilbench.cli.progress import LiveProgress

        return LiveProgress(console.err())
    from fcilbench.cli.lines import LineProgress

    return LineProgress(console.say)


def _print_boards(prepared: Prepared, summary: Summary) -> None:
    from fcilbench.cli.prepare import build_board, show_board

    planned = {item.cell_id: item.cell for item in prepared.plan.items}
    if not any(row.status == "ok" for row in summary.rows.values()):
        return
    for name in prepared.loaded.suite.boards:
        show_board(build_board(name, list(summary.rows.values()), planned))


def _print_summary(prepared: Prepared, summary: Summary) -> None:
    counts = ", ".join(f"{number} {status}" for status, number in sorted(summary.counts.items()))
    trained = len(summary.ran)
    console.say(f"{prepared.plan.expansion.name}: {counts or 'no rows'}; {trained} trained in this run")
    for row in summary.rows.values():
        if row.status != "ok":
            reason = row.skipped or (row.failure.message if row.failure else "")
            console.say(f"  {row.status:<11} {row.cell_id[:12]}  {_coords(row.coords)}  {reason}")
    for cell_id, owner in summary.elsewhere.items():
        console.say(f"  elsewhere   {cell_id[:12]}  {owner}")
    for line in prepared.plan.expansion.prerequisites:
        console.say(f"  missing     {line}")
    console.say(f"rows in {prepared.store.rows_path}; `fcilbench show ID` prints one")


def _coords(coords: dict[str, str | int]) -> str:
    return " ".join(f"{axis}={value}" for axis, value in coords.items())
