"""What a cell's folder remembers of earlier attempts, and whether a new one may go on from their checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fcilbench.results.files import write_atomic
from fcilbench.results.row import code_digest
from fcilbench.results.schema import Row
from fcilbench.suite.cell import Cell

_FILE = "cell.json"
_BROKEN_OFF = frozenset({"killed", "oom", "timeout", "interrupted"})


def resumable(folder: Path, cell: Cell, known: Row | None) -> bool:
    """Whether a checkpoint in a cell's folder may be gone on from.

    It may if the attempts before broke off (a finished or failed one is repeated from the start) and were made by the
    same plugin code: half a cell of old code and half of new code is no result.

    Args:
        folder: The cell's folder.
        cell: The cell.
        known: Its row so far; without one an attempt may have ended with its whole run.
    """
    if known is not None and known.status not in _BROKEN_OFF:
        return False
    try:
        earlier = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(earlier, dict) and earlier.get("code_digest") == code_digest(cell)


def begin(folder: Path, cell: Cell) -> None:
    """Notes which cell, by which code, is worked on in a folder."""
    record: dict[str, Any] = {"code_digest": code_digest(cell), "cell": cell.model_dump(mode="json")}
    write_atomic(folder / _FILE, json.dumps(record, indent=1) + "\n")
