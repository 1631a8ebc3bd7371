"""What the runs of a results folder were to train: `runs.jsonl`, by which `fcilbench status` knows what still waits.

A run writes a line before it trains: its suite, the digest of the resolved suite, and the cells that it will train. It
leaves out what an earlier line says already, so a run that goes on writes nothing. The file stays with the folder: rows
that are exported or merged need none of it.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime, Field

from fcilbench.results.foreign import CURVE, DamagedError
from fcilbench.results.lines import Telling, append_lines, read_lines
from fcilbench.spec.protocol import Closed
from fcilbench.spec.row import Row
from fcilbench.tables import cut

_FILE = "runs.jsonl"


class PlannedCell(Closed):
    """A cell that a run is to train.

    Attributes:
        coords: Label of the cell on each axis of the grid, and `seed`.
        before: `Row.ended` of the result that the run replaces; `None` if there is none yet.
    """

    cell_id: str = Field(pattern="^[0-9a-f]{64}$")
    coords: dict[str, str | int]
    before: AwareDatetime | None = None

    def waits(self, row: Row | None) -> bool:
        """Says whether the cell still has to be trained, by its latest row."""
        return row is None or row.status == "interrupted" or row.ended == self.before


class PlannedRun(Closed):
    """What one run was to train: a line of the file."""

    suite: str
    digest: str
    cells: list[PlannedCell]


def result_of(row: Row | None) -> datetime | None:
    """Returns when a row ended that a run replaces; `None` if there is none, or it is one that the run continues."""
    return None if row is None or row.status == "interrupted" else row.ended


def note_planned(root: Path, run: PlannedRun) -> None:
    """Notes what a run is to train, as far as the folder does not say it yet."""
    known = _read(root).get(run.suite)
    noted = set(map(_key, known.cells)) if known and known.digest == run.digest else set()
    new = [cell for cell in run.cells if _key(cell) not in noted]
    if new:
        append_lines(root, _FILE, [run.model_copy(update={"cells": new}).model_dump_json().encode()])


def planned(root: Path) -> dict[str, dict[str, PlannedCell]]:
    """Returns by suite the cells that its runs are to train, by id; nothing if no run has noted any.

    Of each suite only the version that was started last counts, and in it the last cell of each point of the grid: a
    cell has another id when the version of a plugin was raised.
    """
    return {suite: {cell.cell_id: cell for cell in run.cells} for suite, run in _read(root).items()}


def _read(root: Path) -> dict[str, PlannedRun]:
    """Returns by suite what the lines of its last version say together."""
    telling, found = Telling(root / _FILE), dict[str, PlannedRun]()
    for line in read_lines(root, _FILE, CURVE):
        try:
            run = PlannedRun.model_validate_json(line.content())
        except (DamagedError, ValueError) as error:
            if line.finished:
                telling.left_out(line.number, f"is left out: {cut(' '.join(str(error).split()), 250)}")
            continue
        known = found.get(run.suite)
        cells = [*(known.cells if known and known.digest == run.digest else ()), *run.cells]
        last = {tuple(sorted(cell.coords.items())): cell for cell in cells}
        found[run.suite] = run.model_copy(update={"cells": list(last.values())})
    telling.end()
    return found


def _key(cell: PlannedCell) -> tuple[str, datetime | None]:
    return cell.cell_id, cell.before
