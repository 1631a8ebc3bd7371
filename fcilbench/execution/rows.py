"""The rows of a run: written to the store first, then shown to trackers and display; and their sum at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from fcilbench.errors import CELLS_FAILED, INTERRUPTED, OK, PREREQUISITE
from fcilbench.execution.base import Handle, Progress, SafeCall
from fcilbench.execution.result import Result
from fcilbench.results.provenance import Provenance, capture
from fcilbench.results.row import build_row
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell
from fcilbench.spec.outcome import Cost
from fcilbench.spec.row import Row, parse_row
from fcilbench.tracking.base import Tracker


@dataclass(eq=False)
class Task:
    """A cell that this run owes a row.

    Attributes:
        cell: The cell.
        cell_id: Its identity.
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
    ran: frozenset[str]
    elsewhere: Mapping[str, str]
    interrupted: bool

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
    """Writes rows.

    Args:
        store: Where they go; what is on disk is the truth.
        trackers: Told of each row afterwards.
        progress: The display, told last.
        suite_digest: Digest of the resolved suite, for the rows.
    """

    def __init__(
        self, store: Store, trackers: Iterable[Tracker], progress: Progress, suite_digest: str | None = None
    ) -> None:
        self.store = store
        self._suite_digest = suite_digest
        self.written: dict[str, Row] = {}
        self.ran: set[str] = set()
        self._trackers = [(tracker, SafeCall(type(tracker).__name__)) for tracker in trackers]
        self._progress = progress
        self._show = SafeCall("progress display")
        self._provenance: dict[str, Provenance] = {}

    def suite_started(self, suite: str, facts: Mapping[str, Any]) -> None:
        """Tells the trackers that a suite begins."""
        for tracker, guard in self._trackers:
            guard(tracker.suite_started, suite, facts)

    def suite_finished(self, interrupted: bool) -> None:
        """Tells the trackers that the suite is over, or that the user interrupted it and waits."""
        for tracker, guard in self._trackers:
            guard(tracker.suite_finished, interrupted)

    def record(
        self,
        task: Task,
        result: Result,
        handle: Handle | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        worker: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the row of a task.

        Args:
            task: The task.
            result: How it ended.
            handle: Its last job; `None` if it was never started.
            device: Kind of device that it ran on.
            worker: What its worker reported of its environment.
        """
        provenance = self._capture(worker or {})
        device_seconds = task.seconds if device == "cuda" else 0.0
        row = build_row(
            task.cell,
            task.cell_id,
            result.status,
            result.outcome,
            provenance=provenance,
            started=task.started,
            ended=datetime.now(UTC),
            failure=result.failure,
            skipped=result.skipped,
            cost=None if result.outcome else Cost(wall_s=task.seconds, device_s=device_seconds),
            attempts=task.attempts + task.earlier,
            suite_digest=self._suite_digest,
        )
        row = self.store.append(row)
        if handle is not None:
            self.ran.add(task.cell_id)
        self.adopt(row, handle)

    def adopt(self, row: Row, handle: Handle | None) -> None:
        """Shows a row that is in the store to trackers and display."""
        self.written[row.cell_id] = row
        for tracker, guard in self._trackers:
            guard(tracker.cell_finished, row)
        self._show(self._progress.cell_finished, handle, row)

    def finished_meanwhile(self, task: Task) -> Row | None:
        """Returns the row that another run has ended the cell with since this run was planned, if there is one."""
        try:
            copy = parse_row(json.loads((self.store.cell_dir(task.cell_id) / "row.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
        if copy == task.known:
            return None
        row = self.store.latest().get(task.cell_id)  # the copy may have outlived a rows.jsonl that the user deleted
        return row if row is not None and row != task.known and row.status != "interrupted" else None

    def summary(
        self, known: Mapping[str, Row], selected: Sequence[str], elsewhere: Mapping[str, str], interrupted: bool
    ) -> Summary:
        """Returns the sum of the run; `known` are the rows before it, `selected` the ids that the user selected."""
        rows = {cell_id: row for cell_id in selected if (row := self.written.get(cell_id) or known.get(cell_id))}
        return Summary(rows, frozenset(self.ran), dict(elsewhere), interrupted)

    def _capture(self, worker: Mapping[str, Any]) -> Provenance:
        key = json.dumps(worker, sort_keys=True, default=repr)
        if key not in self._provenance:
            self._provenance[key] = capture(json.loads(key))
            self.store.save_environment(self._provenance[key].environment)
        return self._provenance[key]
