"""The interface of trackers, how one is opened by name, and how it is filled from a results folder."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from fcilbench.registry import entrypoints
from fcilbench.results.store import NoRowsError, Store
from fcilbench.spec.row import Row

Warn = Callable[[str], None]
_log = logging.getLogger(__name__)


@dataclass
class Report:
    """What a tracker has done so far.

    Attributes:
        present: Number of rows that it had already.
        lost: Number of rows that it could not write; `results sync` writes them later.
        warning: Why rows were lost, in one line, or `None`.
    """

    logged: int = 0
    present: int = 0
    lost: int = 0
    warning: str | None = None


class Tracker(Protocol):
    """Observer of a suite. Its methods never raise and never block the run for long.

    A class registered in the entry-point group `fcilbench.trackers` is constructed as
    `Class(store, uri=..., warn=...)`, with `uri=None` if the user gave none. It reports a failure by one call of
    `warn`, and in `report`.
    """

    report: Report

    def suite_started(self, suite: str, facts: Mapping[str, Any]) -> None:
        """Called when a suite starts; `facts` are JSON values that describe it (planned cells, devices, ...)."""

    def cell_finished(self, row: Row) -> None:
        """Called with each row, after the store has it and the cell's curve and files."""

    def suite_finished(self, interrupted: bool = False) -> None:
        """Writes what is pending, in bounded time: after an interrupt within a few seconds."""


def open_tracker(name: str, store: Store, *, uri: str | None = None, warn: Warn | None = None) -> Tracker:
    """Opens a tracker for a results folder, by its plugin name: `mlflow`, or `dist/name` of a third party.

    `uri` is where it writes; `None` means what the environment says, or the tracker's default. `warn` shows one line to
    the user.
    """
    cls = entrypoints.load(entrypoints.lookup("trackers", name))
    return cast(Tracker, cls(store, uri=uri, warn=warn or _log.warning))


def sync(store: Store, tracker: Tracker) -> Report:
    """Passes the last row of every cell to a tracker and returns its report.

    Raises:
        NoRowsError: If the folder has no rows.
    """
    suites: dict[str, list[Row]] = defaultdict(list)
    for row in store.latest().values():
        suites[row.suite].append(row)
    if not suites:
        raise NoRowsError(store.root)
    for suite, rows in suites.items():
        tracker.suite_started(suite, {})
        for row in rows:
            tracker.cell_finished(row)
        tracker.suite_finished()
    return tracker.report
