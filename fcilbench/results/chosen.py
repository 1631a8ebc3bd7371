"""The rows of a results folder that a user asks for: by `--only`, or one by the first digits of its id."""

from __future__ import annotations

from collections.abc import Sequence

from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.files import neighbour
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import NoRowsError, Store
from fcilbench.spec.row import Row
from fcilbench.suite.plan import state_of
from fcilbench.suite.select import parse_selectors


def select_rows(store: Store, only: Sequence[str] | None) -> list[Row]:
    """Returns the last row of each cell that `--only` selects.

    Raises:
        NothingSelectedError: If there is none.
    """
    chosen, latest = parse_selectors(only or ()), store.latest().values()
    stale = stale_rows(latest) if chosen.statuses else {}
    states = {row.cell_id: state_of(row, stale.get(row.cell_id, ()))[0] for row in latest}
    rows = [row for row in latest if chosen.matches(row.cell_id, row.coords, row.status, states[row.cell_id])]
    if not latest:
        raise NoRowsError(store.root)
    if not rows:
        raise NothingSelectedError(chosen.why_nothing(str(store.root), [row.coords for row in latest]))
    return rows


def find_row(store: Store, prefix: str) -> Row:
    """Returns the last row of the one cell whose id begins with `prefix`.

    Raises:
        UsageError: If there is none, or more than one, or no such folder.
    """
    if not store.root.is_dir():
        raise UsageError(f"folder {store.root} does not exist{neighbour(store.root)}")
    found = [row for cell_id, row in store.latest().items() if cell_id.startswith(prefix.lower())]
    if not found:
        raise UsageError(f"no cell {prefix} in {store.root}", hint="`fcilbench show` lists the cells")
    if len(found) > 1:
        raise UsageError(f"{len(found)} cells begin with {prefix}", hint="give more digits of the id")
    return found[0]
