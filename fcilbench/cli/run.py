"""`fcilbench run`: trains the cells of a suite that have no valid row, and prints the boards."""

from __future__ import annotations

import sys
from dataclasses import replace

import typer

from fcilbench.boards.folder import REPORT, build_boards
from fcilbench.boards.render import brief, render
from fcilbench.boards.report import render_report
from fcilbench.cli import console, options
from fcilbench.cli.plan import Prepared, describe, prepare, slots_per_device
from fcilbench.cli.progress import RunProgress, ending
from fcilbench.errors import OK, PREREQUISITE, NothingSelectedError, PrerequisiteError
from fcilbench.execution.base import RunOptions
from fcilbench.execution.devices import choose_devices
from fcilbench.execution.supervisor import Summary, run_plan
from fcilbench.files import write_atomic
from fcilbench.results.store import Store
from fcilbench.tracking.base import Tracker, open_tracker, parse_tracking

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
    devices = tuple(choose_devices(gpus))
    prepared = prepare(suite, set_, out, only=only, rerun=rerun, devices=devices, params=params)
    jobs = slots_per_device(prepared, devices, jobs)
    settings = RunOptions(executor, devices, jobs, wait=not no_wait, fail_fast=fail_fast, offline=offline)
    slots = len(devices) * jobs
    for line in describe(prepared, slots):
        console.say(line)
    console.warn_of_bf16((item.cell.protocol.precision for item in prepared.plan.todo), devices, executor)
    hours = prepared.plan.seconds / slots / 3600
    if hours > _ASK_ABOVE_HOURS and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"About {hours:.0f} hours. Go on?", abort=True, err=True)
    summary = train(prepared, settings, tracking)
    _show_boards(prepared, summary)
    _say_summary(prepared, summary)
    code = summary.exit_code
    raise typer.Exit(PREREQUISITE if code == OK and prepared.plan.blocked else code)


def train(prepared: Prepared, settings: RunOptions, tracking: str | None) -> Summary:
    """Runs a plan with a display and a tracker, and stores the resolved suite beside the rows.

    Raises:
        NothingSelectedError: If the plan has no cell.
        PrerequisiteError: If none of its cells can run here, or the results folder cannot be written.
    """
    plan = prepared.plan
    trackers: list[Tracker] = []
    if prepared.missing and all(item.blocked for item in plan.items):
        hint = "`fcilbench doctor SUITE` says more"
        raise PrerequisiteError(f"no cell can run: {'; '.join(prepared.missing)}", hint=hint)
    if not plan.items:
        raise NothingSelectedError("no cell is selected", hint="look at the suite's exclude rules")
    if any(item.run or item.awaited for item in plan.items):
        prepared.store.prepare()
        digest = prepared.store.save_suite(prepared.loaded.suite.model_dump(mode="json", exclude_none=True))
        settings = replace(settings, suite_digest=digest)
        trackers = open_trackers(prepared.store, tracking)
    return run_plan(plan, prepared.store, [*trackers, RunProgress()], settings)


def open_trackers(store: Store, option: str | None) -> list[Tracker]:
    """Opens the tracker of a results folder; one that is not installed only causes a warning."""
    name, uri = parse_tracking(option)
    try:
        return [] if name == "none" else [open_tracker(name, store, uri=uri, warn=console.warn)]
    except PrerequisiteError as error:
        console.warn(f"not tracked: {error}")
        return []


def _show_boards(prepared: Prepared, summary: Summary) -> None:
    """Prints what of each board fits one screen, and writes the report of all boards."""
    planned = {item.cell_id: item.cell for item in prepared.plan.items}
    rows, store = list(summary.rows.values()), prepared.store
    if not any(row.status == "ok" for row in rows):
        return
    boards = build_boards({*REPORT, *prepared.loaded.suite.boards}, rows, store, planned)
    for name in prepared.loaded.suite.boards:
        console.show(render(brief(boards[name]), width=console.width()))
    report = render_report([boards[name] for name in REPORT], rows, store, title=prepared.plan.expansion.name)
    write_atomic(store.root / "report.html", report)


def _say_summary(prepared: Prepared, summary: Summary) -> None:
    counts = ", ".join(f"{number} {status}" for status, number in sorted(summary.counts.items()))
    good = sum(summary.rows[cell_id].status == "ok" for cell_id in summary.ran)
    trained = f"{len(summary.ran)} trained in this run" + (f", {good} of them ok" if good < len(summary.ran) else "")
    console.say(f"{prepared.plan.expansion.name}: {counts or 'no rows'}; {trained}")
    for row in summary.rows.values():
        if row.status != "ok":
            console.say(f"  {ending(row)}")
        if row.failure and row.failure.traceback_path:
            console.say(f"    traceback: {prepared.store.root / row.failure.traceback_path}")
    for cell_id, owner in summary.elsewhere.items():
        console.say(f"  elsewhere {cell_id[:12]}  {owner}")
    console.say(f"rows in {prepared.store.rows_path}; `fcilbench show ID` prints one")
    if summary.counts["ok"]:
        console.say(
            f"Next: open {prepared.store.root / 'report.html'}; its notes say what a claim must beat (controls, ‡) and "
            "what is not ranked (centralised training, §), "
            "its learning curves where a method forgets"
        )
