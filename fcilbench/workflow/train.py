"""Trains the cells of a suite: `train` those that a plan marks, `run` from the suite's file to its boards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fcilbench.boards.folder import REPORT, build_boards
from fcilbench.boards.model import Board
from fcilbench.errors import OK, PREREQUISITE, NothingSelectedError, PrerequisiteError
from fcilbench.execution.base import RunOptions
from fcilbench.execution.bf16 import slow_bf16
from fcilbench.execution.devices import choose_devices
from fcilbench.execution.summary import Summary
from fcilbench.execution.supervisor import run_plan
from fcilbench.files import write_atomic
from fcilbench.pages.report import render_report
from fcilbench.results.planned import PlannedCell, PlannedRun, note_planned, result_of
from fcilbench.results.store import Store
from fcilbench.tracking.base import Tracker, open_tracker, parse_tracking
from fcilbench.workflow.prepare import Prepared, describe, prepare, slots_per_device
from fcilbench.workflow.screen import SILENT, Screen


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        summary: What became of the selected cells.
        boards: The boards that the suite names, in its order; none if no cell has a result.
    """

    prepared: Prepared
    summary: Summary
    boards: list[Board] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """Exit code of the process: that of the summary, or 5 if cells were left out for what is missing here."""
        code = self.summary.exit_code
        return PREREQUISITE if code == OK and self.prepared.plan.blocked else code


def run(
    suite: Path,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    params: Path | None = None,
    only: Sequence[str] = (),
    rerun: str = "stale",
    gpus: str = "auto",
    jobs: int | None = None,
    options: RunOptions | None = None,
    tracking: str | None = None,
    screen: Screen = SILENT,
    before: Callable[[float], None] = lambda _: None,
) -> Run:
    """Trains the cells of a suite that have no valid row yet, and writes `report.html` with all boards.

    Args:
        suite: Suite file.
        out: Results folder.
        overrides: Values of `-s`, e.g. `protocol.rounds=2`.
        params: Lock file of `fcilbench tune`.
        only: Values of `--only`.
        rerun: Value of `--rerun`.
        gpus: Value of `--gpus`; it and `jobs` decide `devices` and `jobs` of the options.
        jobs: Cells at a time on each device; `None` is the number that suits it.
        options: How the cells are run.
        tracking: Value of `--tracking`.
        screen: Where it tells what it does.
        before: Called before anything is trained, with the hours that the run will take; it may raise.

    Raises:
        FcilbenchError: If the suite is wrong, nothing is selected, or nothing can run here; cells that fail raise
            nothing.
    """
    devices = tuple(choose_devices(gpus))
    prepared = prepare(suite, overrides, out, only=only, rerun=rerun, devices=devices, params=params)
    jobs = slots_per_device(prepared, devices, jobs)
    options = replace(options or RunOptions(), devices=devices, jobs=jobs)
    slots = len(devices) * jobs
    for line in describe(prepared, slots):
        screen.say(line)
    if slow := slow_bf16((item.cell.protocol.precision for item in prepared.plan.todo), devices, options.executor):
        screen.warn(slow)
    before(prepared.plan.seconds / slots / 3600)
    summary = train(prepared, options, tracking, screen)
    return Run(prepared, summary, _boards(prepared, summary))


def train(prepared: Prepared, options: RunOptions, tracking: str | None = None, screen: Screen = SILENT) -> Summary:
    """Runs a plan with a tracker, and stores the resolved suite beside the rows.

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
        options = replace(options, suite_digest=digest)
        todo = {item.cell_id: item for item in plan.items if item.run or item.awaited}
        cells = [
            PlannedCell(cell_id=cell_id, coords=item.cell.coords, before=result_of(item.row))
            for cell_id, item in todo.items()
        ]
        note_planned(prepared.store.root, PlannedRun(suite=plan.expansion.name, digest=digest, cells=cells))
        trackers = open_trackers(prepared.store, tracking, screen)
    return run_plan(plan, prepared.store, [*trackers, screen.display()], options)


def open_trackers(store: Store, option: str | None, screen: Screen) -> list[Tracker]:
    """Opens the tracker of a results folder; one that is not installed only causes a warning."""
    name, uri = parse_tracking(option)
    try:
        return [] if name == "none" else [open_tracker(name, store, uri=uri, warn=screen.warn)]
    except PrerequisiteError as error:
        screen.warn(f"not tracked: {error}")
        return []


def _boards(prepared: Prepared, summary: Summary) -> list[Board]:
    """Builds the boards of the selected cells, and writes the report of all cells of the suite that have a row."""
    planned = {item.cell_id: item.cell for item in prepared.plan.items}
    rows, store, names = summary.rows, prepared.store, prepared.loaded.suite.boards
    if not any(row.status == "ok" for row in rows.values()):
        return []
    built = shown = build_boards({*REPORT, *names}, list(rows.values()), store, planned)
    expansion, latest = prepared.plan.expansion, store.latest()
    others = {key: cell for key, cell in zip(expansion.ids, expansion.cells, strict=True) if key in latest}
    if not others.keys() <= rows.keys():  # `--only` has selected a part, or another process trains the rest
        rows = {key: latest[key] for key in others}
        shown = build_boards(REPORT, list(rows.values()), store, {**others, **planned})
    report = render_report([shown[name] for name in REPORT], list(rows.values()), store, title=expansion.name)
    write_atomic(store.root / "report.html", report)
    return [built[name] for name in names]
