"""What a cell's folder remembers of earlier attempts, and whether a new one may go on from their checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fcilbench.files import write_atomic
from fcilbench.results.row import code_digest
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row

_FILE = "cell.json"
_LEFT_OVER = ("checkpoint.pt", "rounds.jsonl", "traceback.txt")
_BROKEN_OFF = frozenset({"killed", "oom", "timeout", "interrupted"})


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
        record = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        return int(record["attempts"]) if record["code_digest"] == code_digest(cell) else 0
    except (OSError, ValueError, TypeError, KeyError):
        return 0


def forget(folder: Path) -> None:
    """Removes what an earlier attempt left to go on from."""
    for name in _LEFT_OVER:
        (folder / name).unlink(missing_ok=True)


def begin(folder: Path, cell: Cell, attempts: int) -> None:
    """Notes which cell, by which code and in which attempt, is worked on in a folder."""
    record: dict[str, Any] = {
        "attempts": attempts,
        "code_digest": code_digest(cell),
        "cell": cell.model_dump(mode="json"),
    }
    write_atomic(folder / _FILE, json.dumps(record, indent=1) + "\n")
