"""A cell that a run must end: its attempts, where more cells come from, and how an attempt ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fcilbench.escape import line
from fcilbench.execution.lease import Lease, Owner, acquire
from fcilbench.files import write_atomic
from fcilbench.results.row import code_digest
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell
from fcilbench.spec.outcome import Outcome
from fcilbench.spec.row import Failure, Row, Status, parse_row
from fcilbench.tables import cut
from fcilbench.worker.events import Event

NOTE = "cell.json"
"""File in a cell's folder that says how many attempts there were, and with which plugin code."""
_LEFT_OVER = ("checkpoint.pt", "rounds.jsonl", "traceback.txt")
_LONGEST = 500
_BROKEN_OFF = frozenset({"killed", "oom", "timeout", "interrupted"})


@dataclass(eq=False)
class Assignment:
    """A cell that must get a row in this run.

    Attributes:
        awaited: Whether another run worked on it when this one was planned.
        attempts: Attempts that this run has started.
        earlier: Attempts of earlier runs that the first one continued.
        anew: Whether the first attempt begins anew a cell that has a row already.
        alone: Whether the next attempt has a device to itself, because memory ran out on a shared one.
        started: Start of the first attempt in this run.
        seconds: Total time of the attempts that ended without a result.
    """

    cell: Cell
    cell_id: str
    known: Row | None = None
    awaited: bool = False
    attempts: int = 0
    earlier: int = 0
    anew: bool = False
    alone: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0


class Feed:
    """Gives a supervisor more assignments while it runs, and may end a cell early. This base class does neither."""

    @property
    def cells(self) -> int:
        """Number of cells that it will give at most."""
        return 0

    @property
    def open(self) -> bool:
        """Whether it may still give assignments."""
        return False

    def take(self) -> Assignment | None:
        """Returns the next assignment, or `None` if there is none at the moment."""
        return None

    def reported(self, cell_id: str, event: Event) -> str | None:
        """Receives an event of a running cell, and returns a reason if the cell must end now."""
        return None

    def ended(self, row: Row) -> None:
        """Receives the row of each assignment that has ended."""

    def beat(self) -> None:
        """Called several times a second while the supervisor runs."""


@dataclass(frozen=True)
class End:
    """How an attempt ended: with an outcome (`ok`), with the plugin's reason (`skipped`), or with a failure."""

    status: Status
    outcome: Outcome | None = None
    failure: Failure | None = None
    skipped: str | None = None


def claim(assignment: Assignment, store: Store) -> Lease | Owner | Row:
    """Takes the lease of an assignment's cell and counts an attempt; `make_ready` comes next.

    Returns:
        The lease; or the living owner who works on the cell; or the row with which another run has ended it.
    """
    folder = store.cell_dir(assignment.cell_id)
    held = acquire(folder)
    if isinstance(held, Owner):
        return held
    finished = _finished_meanwhile(assignment, store)
    if finished is not None:
        held.release()
        return finished
    if not assignment.attempts:
        assignment.started = datetime.now(UTC)
        assignment.earlier = _resumable(folder, assignment)
        known = assignment.known.status if assignment.known else "interrupted"
        assignment.anew = known != "interrupted" and not assignment.earlier
    assignment.attempts += 1
    return held


def make_ready(assignment: Assignment, store: Store) -> None:
    """Makes a claimed cell's folder ready for the next attempt, which goes on from a valid checkpoint if there is one.

    If the first attempt begins at the beginning, what others have left goes: also the curve of the row that counts, so
    of a cell that begins `anew` another row has to count before.
    """
    folder = store.cell_dir(assignment.cell_id)
    if assignment.attempts == 1 and not assignment.earlier:
        for name in _LEFT_OVER:  # before the note below, which makes the folder's files valid
            (folder / name).unlink(missing_ok=True)
    note = {
        "attempts": assignment.earlier + assignment.attempts,
        "code_digest": code_digest(assignment.cell),
        "cell": assignment.cell.model_dump(mode="json"),
    }
    write_atomic(folder / NOTE, json.dumps(note, indent=1) + "\n")


def _resumable(folder: Path, assignment: Assignment) -> int:
    """Returns the number of earlier attempts that the next one continues, or 0 if it must start from the beginning.

    Attempts that broke off are continued, if the plugins had the same code. Without a row, the run itself broke off.
    """
    if assignment.known is not None and assignment.known.status not in _BROKEN_OFF:
        return 0
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        return int(note["attempts"]) if note["code_digest"] == code_digest(assignment.cell) else 0
    except (OSError, ValueError, TypeError, KeyError):
        return 0


def _finished_meanwhile(assignment: Assignment, store: Store) -> Row | None:
    """Returns the row with which another run has ended the cell since this run was planned, if there is one."""
    try:
        text = (store.cell_dir(assignment.cell_id) / "row.json").read_text(encoding="utf-8")
        if news(assignment, parse_row(json.loads(text))) is None:
            return None
    except (OSError, ValueError):
        return None
    row = None
    for each in store.scan():  # `row.json` may have outlived a rows.jsonl that the user deleted
        row = each if each.cell_id == assignment.cell_id and not (row and each.unstarted) else row
    return news(assignment, row)


def news(assignment: Assignment, last: Row | None) -> Row | None:
    """Returns the last row of an assignment's cell if another run has ended the cell with it since this one's plan."""
    before = assignment.known.ended if assignment.known else None
    return last if last is not None and last.ended != before and last.status != "interrupted" else None


def end_of(event: Event, cell_folder: str) -> End:
    """Returns the end that a job's last event reports; `cell_folder` is relative to the results folder."""
    message = cut(line(event.get("message") or event.get("reason") or "no reason given"), _LONGEST)
    match event["event"]:
        case "finished":
            try:
                return End("ok", outcome=Outcome.model_validate(event.get("outcome")))
            except ValueError as error:
                message = f"the worker's result is invalid: {cut(line(error), _LONGEST)}"
                return End("failed", failure=Failure(kind="internal", type=type(error).__name__, message=message))
        case "skipped":
            return End("skipped", skipped=message)
        case "failed" if event.get("kind") == "environment":
            return interrupted(f"{message}; make room there, then the same command resumes the cell")
        case "failed" | "oom" as status:
            kind = str(event.get("kind", "internal")) if status == "failed" else "oom"
            path = event.get("traceback_path")
            trace = f"{cell_folder}/{path}" if path else None
            type_ = str(event.get("type") or kind)
            return End(status, failure=Failure(kind=kind, type=type_, message=message, traceback_path=trace))
        case _:
            return stopped("killed", "killed", str(event.get("type")), message)


def stopped(status: Status, kind: str, type_: str, message: str) -> End:
    """Returns the end of an attempt that the supervisor ended; the words are those of `Failure`."""
    return End(status, failure=Failure(kind=kind, type=type_, message=message))


def interrupted(message: str) -> End:
    """Returns the end of a cell that was stopped or not started because the run ended early."""
    return stopped("interrupted", "interrupted", "interrupt", message)
