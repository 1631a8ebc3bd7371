"""How attempts end, and the rows of a run: written to the store, shown to trackers and display, summed at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from fcilbench.errors import CELLS_FAILED, INTERRUPTED, OK, PREREQUISITE
from fcilbench.execution.base import Handle, Progress
from fcilbench.registry.process import Event
from fcilbench.results.provenance import Provenance, capture
from fcilbench.results.row import build_row
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell
from fcilbench.spec.outcome import Cost, Outcome
from fcilbench.spec.row import Failure, Row, Status, parse_row
from fcilbench.tracking.base import Tracker


@dataclass(eq=False)
class Task:
    """A cell that this run owes a row.

    Attributes:
        known: Its row when the run was planned.
        attempts: Attempts that this run has begun.
        earlier: Attempts of earlier runs that the first one went on from.
        alone: Whether its next attempt gets a device for itself, after memory ran out on a shared one.
        started: When the first attempt of this run began.
        seconds: What the attempts that ended without a result took together.
    """

    cell: Cell
    cell_id: str
    known: Row | None = None
    attempts: int = 0
    earlier: int = 0
    alone: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0

    @property
    def retries_left(self) -> int:
        """How many more attempts the suite allows after this one."""
        return self.cell.limits.retries + 1 - self.attempts


class Feed:
    """Gives a supervisor more tasks while it runs, and may end one early; this one does neither."""

    @property
    def open(self) -> bool:
        """Whether more tasks may come, now or later."""
        return False

    def take(self) -> Task | None:
        """Returns the next task, or `None` if there is none at this moment."""
        return None

    def reported(self, cell_id: str, event: Event) -> str | None:
        """Hears what a worker reports of a cell, and returns the reason if the cell is to be ended now."""
        return None

    def ended(self, row: Row) -> None:
        """Hears the row of each task that has ended."""

    def beat(self) -> None:
        """Called several times a second while the supervisor is alive."""


@dataclass(frozen=True)
class Result:
    """How an attempt ended: with an `outcome` (`ok`), the plugin's reason (`skipped`), or a `failure`."""

    status: Status
    outcome: Outcome | None = None
    failure: Failure | None = None
    skipped: str | None = None


@dataclass(frozen=True)
class Summary:
    """What became of the selected cells.

    Attributes:
        rows: The last row of each selected cell that has one, by `cell_id`; rows of earlier runs included.
        ran: Ids of the cells that got a row in this run after being started.
        elsewhere: Ids of the cells that another living process works on, with that process.
        interrupted: Whether the user ended the run.
    """

    rows: Mapping[str, Row]
    ran: frozenset[str] = frozenset()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def counts(self) -> Counter[str]:
        """Number of selected cells by status."""
        return Counter(row.status for row in self.rows.values())

    @property
    def exit_code(self) -> int:
        """Exit code of the process.

        130 if interrupted; 0 if every selected cell is `ok`; 5 if all that are not lack a prerequisite; else 3.
        """
        if self.interrupted:
            return INTERRUPTED
        bad = [row for row in self.rows.values() if row.status != "ok"]
        if not bad and not self.elsewhere:
            return OK
        missing = all(row.failure is not None and row.failure.kind == "prerequisite" for row in bad)
        return PREREQUISITE if bad and missing and not self.elsewhere else CELLS_FAILED


class RowWriter:
    """Writes rows to the store, then shows each to the trackers and the display."""

    def __init__(
        self, store: Store, trackers: Sequence[Tracker], progress: Progress, suite_digest: str | None = None
    ) -> None:
        self.store = store
        self._suite_digest = suite_digest
        self.written: dict[str, Row] = {}
        self.ran: set[str] = set()
        self._trackers = trackers
        self._progress = progress
        self._provenance: dict[str, Provenance] = {}

    def record(
        self,
        task: Task,
        result: Result,
        handle: Handle | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        worker: Mapping[str, Any] | None = None,
    ) -> Row:
        """Writes the row of a task and returns it; without a handle it was never started.

        `worker` is what its worker reported of its environment.
        """
        row = build_row(
            task.cell,
            task.cell_id,
            result.status,
            result.outcome,
            provenance=self._capture(worker or {}),
            started=task.started,
            ended=datetime.now(UTC),
            failure=result.failure,
            skipped=result.skipped,
            cost=None if result.outcome else Cost(wall_s=task.seconds, device_s=task.seconds * (device == "cuda")),
            attempts=task.attempts + task.earlier,
            suite_digest=self._suite_digest,
        )
        if handle is not None:
            self.ran.add(task.cell_id)
        row = self.store.append(row)
        self.adopt(row, handle)
        return row

    def adopt(self, row: Row, handle: Handle | None) -> None:
        """Shows a row that is in the store to trackers and display."""
        self.written[row.cell_id] = row
        for tracker in self._trackers:
            tracker.cell_finished(row)
        self._progress.cell_finished(handle, row)

    def finished_meanwhile(self, task: Task) -> Row | None:
        """Returns the row that another run has ended the cell with since this run was planned, if there is one."""
        before = task.known.ended if task.known else None
        try:
            text = (self.store.cell_dir(task.cell_id) / "row.json").read_text(encoding="utf-8")
            if parse_row(json.loads(text)).ended == before:
                return None
        except (OSError, ValueError):
            return None
        row = None
        for each in self.store.scan():  # the copy may have outlived a rows.jsonl that the user deleted
            row = each if each.cell_id == task.cell_id else row
        return row if row is not None and row.ended != before and row.status != "interrupted" else None

    def _capture(self, worker: Mapping[str, Any]) -> Provenance:
        key = json.dumps(worker, sort_keys=True, default=repr)
        if key not in self._provenance:
            self._provenance[key] = capture(json.loads(key))
            self.store.save_environment(self._provenance[key].environment)
        return self._provenance[key]


def result_of(event: Event, cell_folder: str) -> Result:
    """Returns the result of a terminal event or of `died`; `cell_folder` is relative to the store's."""
    message = _line(event.get("message") or event.get("reason")) or "no reason given"
    match event["event"]:
        case "finished":
            try:
                return Result("ok", outcome=Outcome.model_validate(event.get("outcome")))
            except ValueError as error:
                message = f"the worker's result is invalid: {_line(error)}"
                return Result("failed", failure=Failure(kind="internal", type=type(error).__name__, message=message))
        case "skipped":
            return Result("skipped", skipped=message)
        case "failed" if event.get("kind") == "environment":
            return interrupted(f"{message}; make room there, then the same command resumes the cell")
        case "failed" | "oom" as status:
            kind = str(event.get("kind", "internal")) if status == "failed" else "oom"
            path = event.get("traceback_path")
            trace = f"{cell_folder}/{path}" if path else None
            type_ = str(event.get("type") or kind)
            return Result(status, failure=Failure(kind=kind, type=type_, message=message, traceback_path=trace))
        case _:
            return Result("killed", failure=Failure(kind="killed", type=str(event.get("type")), message=message))


def timed_out(seconds: float) -> Result:
    """Returns the result of an attempt that reached its wall-clock limit."""
    message = f"stopped after {seconds:g} s, the suite's limits.wall"
    return Result("timeout", failure=Failure(kind="timeout", type="wall", message=message))


def ended_early(reason: str) -> Result:
    """Returns the result of a cell whose rest nobody needs."""
    return Result("interrupted", failure=Failure(kind="pruned", type="pruned", message=reason))


def interrupted(message: str) -> Result:
    """Returns the result of a cell that was stopped, or not started, because the run ended early."""
    return Result("interrupted", failure=Failure(kind="interrupted", type="interrupt", message=message))


def _line(text: object) -> str:
    """Returns a text as one line, cut where it gets too long to read in a table."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= 500 else line[:499] + "…"
