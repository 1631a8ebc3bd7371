"""How far the runs of a results folder are, read from its files alone: rows, leases, curves and the runs' own notes.

Several processes and machines may work on one folder; each cell that is trained has a lease. Nothing here writes, and
no plugin is asked.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from fcilbench.execution.assignments import NOTE
from fcilbench.execution.lease import LEASE, Owner, living_owner
from fcilbench.results.curves import own_file
from fcilbench.results.foreign import RECORD, DamagedError, RefusedError, open_regular, parse_json, read_regular
from fcilbench.results.planned import planned
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell
from fcilbench.spec.events import standing
from fcilbench.spec.row import Row

Standing = Literal["done", "running", "failed", "skipped", "waiting"]
"""A cell that was interrupted waits: the same command continues it."""

_GAP = timedelta(minutes=2)
"""Longest time without a cell in training within one stretch of work: a worker may take that long to start."""
_TAIL = 65_536
"""Bytes at the end of a curve that are searched for its last event."""

Coords = Mapping[str, str | int]


@dataclass(frozen=True)
class Running:
    """A cell that a living process trains.

    Attributes:
        since: When its present attempt began.
        share: How much of it is done, in [0, 1].
        text: The same in words; empty before its first round.
    """

    cell_id: str
    suite: str
    coords: Coords
    owner: Owner
    since: datetime
    share: float
    text: str


@dataclass(frozen=True)
class Waiting:
    """A cell that a run was to train and that nobody trains now."""

    cell_id: str
    suite: str
    coords: Coords


@dataclass(frozen=True)
class Status:
    """How far the runs of a folder are.

    Attributes:
        rows: The latest row of each cell that has ended and neither runs nor waits again.
        waiting_known: Whether any run has noted here which cells it was to train.
        now: When this was read.
        began: Start of the present stretch of work, or of the last one: between its cells there was no long break.
        ended: The cells that ended in that stretch.
    """

    rows: Sequence[Row]
    running: Sequence[Running]
    waiting: Sequence[Waiting]
    waiting_known: bool
    now: datetime
    began: datetime
    ended: Sequence[Row] = field(default=())

    @property
    def counts(self) -> dict[Standing, int]:
        """Number of cells by how they stand."""
        return counted(map(standing_of, self.rows), len(self.running), len(self.waiting))

    @property
    def hours(self) -> float:
        """Length of the stretch of work: up to now, or to the end of its last cell if nothing runs."""
        last = self.now if self.running else max((row.ended for row in self.ended), default=self.began)
        return max(0.0, (last - self.began).total_seconds() / 3600)

    def rate(self, ended: int | None = None) -> float | None:
        """Returns how many cells end in an hour of the stretch: all, or `ended` of them; `None` if none has ended."""
        number = len(self.ended) if ended is None else ended
        return number / self.hours if number and self.hours else None

    @property
    def left(self) -> float | None:
        """Seconds until all known cells have ended, if as many run at a time as do now; `None` if that is not known.

        A cell takes as long as the median of the finished ones of its suite, data set, backbone and method, else of
        its suite, else as the cells that run now seem to need.
        """
        if not self.running or not self.waiting_known:
            return None
        guess = _seconds(self.rows, self.running, self.now)
        rests = [guess(each.suite, each.coords) for each in self.waiting]
        now = [(guess(each.suite, each.coords), each.share) for each in self.running]
        if any(each is None for each in (*rests, *(seconds for seconds, _ in now))):
            return None
        running = [(seconds or 0.0) * (1 - share) for seconds, share in now]
        return max(*running, (sum(running) + sum(each or 0.0 for each in rests)) / len(running))


def standing_of(row: Row) -> Standing:
    """Returns how a cell with a final row stands."""
    return "done" if row.status == "ok" else "skipped" if row.status == "skipped" else "failed"


def counted(ended: Iterable[Standing], running: int, waiting: int) -> dict[Standing, int]:
    """Returns the number of cells by how they stand, also of what there is none."""
    found = Counter(ended)
    return {
        "done": found["done"],
        "running": running,
        "failed": found["failed"],
        "skipped": found["skipped"],
        "waiting": waiting,
    }


class Watcher:
    """Reads the status of a folder again and again; rows are read anew only when there are more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: object = None
        self._rows: dict[str, Row] = {}

    def look(self) -> Status:
        """Returns how far the runs are now."""
        root, now = self._store.root, datetime.now(UTC)
        runs = planned(root)
        running = _running(self._store, {cell_id: suite for suite, cells in runs.items() for cell_id in cells})
        rows = self._latest()  # after the leases: a cell that ends meanwhile is not missed
        trained = {each.cell_id for each in running}
        waiting = {
            cell_id: Waiting(cell_id, suite, cell.coords)
            for suite, cells in runs.items()
            for cell_id, cell in cells.items()
            if cell_id not in trained and cell.waits(rows.get(cell_id))
        }
        for cell_id, row in rows.items():
            if row.status == "interrupted" and cell_id not in trained:
                waiting.setdefault(cell_id, Waiting(cell_id, row.suite, row.coords))
        ended = [row for row in rows.values() if row.attempts and row.status != "interrupted"]
        began = _began(ended, running, now)
        final = [row for cell_id, row in rows.items() if cell_id not in trained and cell_id not in waiting]
        recent = [row for row in ended if row.ended >= began]
        return Status(final, running, list(waiting.values()), bool(runs), now, began, recent)

    def _latest(self) -> dict[str, Row]:
        try:
            found = os.stat(self._store.rows_path)
            seen: object = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            seen = None
        if seen is None or seen != self._seen:
            self._rows, self._seen = self._store.latest(), seen
        return self._rows


def _running(store: Store, suites: Mapping[str, str]) -> list[Running]:
    """Returns the cells whose lease a living process holds, those that began first at the front."""
    found = []
    for path in store.root.glob(f"cells/*/{LEASE}"):
        owner, name = living_owner(path.parent), path.parent.name
        if owner is None:
            continue
        cell, since = _note(store.root, name)
        share, text = standing(_last_event(store.root, name))
        suite = suites.get(name, cell.suite if cell else "")
        found.append(Running(name, suite, cell.coords if cell else {}, owner, since, share, text))
    return sorted(found, key=lambda each: (each.since, each.cell_id))


def _note(root: Path, cell_id: str) -> tuple[Cell | None, datetime]:
    """Returns a cell that is trained, if the note of its attempt can be read, and when the attempt began."""
    name = f"cells/{cell_id}/{NOTE}"
    try:
        began = os.stat(root / name, follow_symlinks=False).st_mtime
        content = parse_json(read_regular(root, name, RECORD.size) or b"")
        return Cell.model_validate(content["cell"]), datetime.fromtimestamp(began, UTC)
    except (OSError, ValueError, TypeError, KeyError, RefusedError):  # it has not been written yet
        return None, datetime.now(UTC)


def _last_event(root: Path, cell_id: str) -> dict[str, object]:
    """Returns the last event of a growing curve, or one that says nothing."""
    try:
        with open_regular(root, own_file(cell_id)) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read(_TAIL).splitlines()
    except (OSError, RefusedError):
        lines = []
    for line in reversed(lines):
        try:
            event = parse_json(line)
            standing(event)
        except (DamagedError, KeyError, TypeError, ValueError):  # half a line, or somebody else's
            continue
        return dict(event)
    return {"event": ""}


def _began(ended: Sequence[Row], running: Sequence[Running], now: datetime) -> datetime:
    """Returns when the last stretch of work began: going back in time, the first moment before which nobody worked."""
    times = sorted([(row.ended, row.started) for row in ended] + [(now, each.since) for each in running], reverse=True)
    if not times:
        return now
    began = times[0][1]
    for end, start in times[1:]:
        if end + _GAP < began:
            break
        began = min(began, start)
    return began


def _seconds(rows: Sequence[Row], running: Sequence[Running], now: datetime) -> Callable[[str, Coords], float | None]:
    """Returns what estimates the seconds of a cell from its suite and its labels; see `Status.left`."""
    known = defaultdict[tuple[object, ...], list[float]](list)
    for row in rows:
        if row.status == "ok":
            known[_work(row.suite, row.coords)].append(row.cost.wall_s)
            known[(row.suite,)].append(row.cost.wall_s)
    for each in running:
        if each.share:
            known[()].append((now - each.since).total_seconds() / each.share)

    def guess(suite: str, coords: Coords) -> float | None:
        found = known.get(_work(suite, coords)) or known.get((suite,)) or known.get(())
        return statistics.median(found) if found else None

    return guess


def _work(suite: str, coords: Coords) -> tuple[object, ...]:
    return suite, *(coords.get(axis) for axis in ("dataset", "backbone", "aggregator"))
