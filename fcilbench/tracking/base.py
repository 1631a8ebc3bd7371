"""What a tracker is, how one is found by name, and how one is back-filled from a results folder."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from fcilbench.errors import NothingSelectedError
from fcilbench.registry import entrypoints
from fcilbench.results.store import Store
from fcilbench.spec.row import Row

Warn = Callable[[str], None]
_log = logging.getLogger(__name__)


@dataclass
class Report:
    """What a tracker has done so far.

    Attributes:
        logged: Rows it wrote.
        present: Rows it already had, as they are.
        lost: Rows it could not write; `results sync` back-fills them.
        warning: The one line that says why rows were lost, or `None`.
    """

    logged: int = 0
    present: int = 0
    lost: int = 0
    warning: str | None = None


class Tracker(Protocol):
    """Observer of a suite. Its methods never raise and never block the run for long.

    A class registered in the entry-point group `fcilbench.trackers` is constructed as
    `Class(store, uri=..., warn=...)`, with `uri=None` when the user named none. What goes wrong is reported once,
    by one call of `warn`, and counted in `report`.
    """

    report: Report

    def suite_started(self, suite: str, facts: Mapping[str, Any]) -> None:
        """Notes that a suite starts; `facts` are JSON values that describe it (planned cells, devices, ...)."""

    def cell_finished(self, row: Row) -> None:
        """Mirrors a row; the store already holds it, with the cell's curve and files."""

    def suite_finished(self, interrupted: bool = False) -> None:
        """Writes what is pending, in bounded time; after an interrupt the user waits: within a few seconds."""


def open_tracker(name: str, store: Store, *, uri: str | None = None, warn: Warn | None = None) -> Tracker:
    """Returns the tracker of a results folder by its plugin name: `mlflow`, or `dist/name` of a third party.

    Without a `uri` the environment and the tracker's default say where it writes; `warn` shows one line to the user.
    """
    cls = entrypoints.load(entrypoints.lookup("trackers", name))
    return cast(Tracker, cls(store, uri=uri, warn=warn or _log.warning))


def sync(store: Store, tracker: Tracker) -> Report:
    """Shows the last row of every cell to a tracker and returns its report; doing it twice changes nothing.

    Raises:
        NothingSelectedError: If the folder has no rows.
    """
    suites: dict[str, list[Row]] = defaultdict(list)
    for row in store.latest().values():
        suites[row.suite].append(row)
    if not suites:
        raise NothingSelectedError(f"no rows in {store.root}", hint="`fcilbench run SUITE --out DIR` writes them")
    for suite, rows in suites.items():
        tracker.suite_started(suite, {})
        for row in rows:
            tracker.cell_finished(row)
        tracker.suite_finished()
    return tracker.report
