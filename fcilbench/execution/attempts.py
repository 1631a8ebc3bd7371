"""Taking a cell: its lease, and what its folder remembers of earlier attempts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from fcilbench.execution import lease
from fcilbench.execution.lease import Lease, Owner
from fcilbench.execution.rows import RowWriter, Task
from fcilbench.files import write_atomic
from fcilbench.results.row import code_digest
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row

_NOTE = "cell.json"
_LEFT_OVER = ("checkpoint.pt", "rounds.jsonl", "traceback.txt")
_BROKEN_OFF = frozenset({"killed", "oom", "timeout", "interrupted"})


def take(task: Task, writer: RowWriter) -> Lease | Owner | Row:
    """Takes a cell for one more attempt, and counts the attempt.

    Returns:
        The lease; or the living owner who works on the cell; or the row that another run has ended it with meanwhile.
    """
    folder = writer.store.make_cell_dir(task.cell_id)
    held = lease.acquire(folder)
    if isinstance(held, Owner):
        return held
    finished = writer.finished_meanwhile(task)
    if finished is not None:
        held.release()
        return finished
    if not task.attempts:
        task.started = datetime.now(UTC)
        task.earlier = resumable(folder, task.cell, task.known)
        if not task.earlier:
            forget(folder)  # before the note below, which vouches for what lies in the folder
    task.attempts += 1
    note_attempt(folder, task.cell, task.earlier + task.attempts)
    return held


def resumable(folder: Path, cell: Cell, known: Row | None) -> int:
    """Returns how many attempts a new one may go on from; 0 if a checkpoint in the cell's folder is void.

    They may be gone on from if they broke off (a finished or failed one is repeated from the start) and were made by
    the same plugin code: half a cell of old code and half of new code is no result.

    Args:
        folder: The cell's folder.
        cell: The cell.
        known: Its row so far; without one an attempt may have ended with its whole run.
    """
    if known is not None and known.status not in _BROKEN_OFF:
        return 0
    try:
        record = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        return int(record["attempts"]) if record["code_digest"] == code_digest(cell) else 0
    except (OSError, ValueError, TypeError, KeyError):
        return 0


def forget(folder: Path) -> None:
    """Removes what an earlier attempt left to go on from."""
    for name in _LEFT_OVER:
        (folder / name).unlink(missing_ok=True)


def note_attempt(folder: Path, cell: Cell, attempts: int) -> None:
    """Notes which cell, by which code and in which attempt, is worked on in a folder."""
    record = {"attempts": attempts, "code_digest": code_digest(cell), "cell": cell.model_dump(mode="json")}
    write_atomic(folder / _NOTE, json.dumps(record, indent=1) + "\n")
