"""Back-fills a tracker from the results folder: what was lost to a dead server, or never tracked."""

from __future__ import annotations

from collections import defaultdict

from fcilbench.errors import NothingSelectedError
from fcilbench.results.store import Store
from fcilbench.spec.row import Row
from fcilbench.tracking.base import Report, Tracker


def sync(store: Store, tracker: Tracker) -> Report:
    """Shows the last row of every cell to a tracker; doing it twice changes nothing.

    Args:
        store: Results folder.
        tracker: Tracker of that folder (`open_tracker`).

    Returns:
        The tracker's report: rows logged, present already, lost; `warning` says why any were lost.

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
