"""What became of the cells of a run, and the exit code that says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fcilbench.errors import CELLS_FAILED, INTERRUPTED, OK, PREREQUISITE
from fcilbench.spec.row import Row


@dataclass
class Summary:
    """What became of the selected cells; the supervisor fills it.

    Attributes:
        rows: The last row of each selected cell that has one, by `cell_id`; rows of earlier runs included.
        ran: Ids of the cells that this run started and that got a row.
        elsewhere: Ids of the cells that another living process works on, with that process.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    elsewhere: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def counts(self) -> Counter[str]:
        """Number of selected cells by status."""
        return Counter(row.status for row in self.rows.values())

    @property
    def exit_code(self) -> int:
        """Exit code of the process.

        130 if interrupted; 0 if every selected cell is `ok`; 5 if all that are not lack a prerequisite; else 3.
        """
        if self.interrupted:
            return INTERRUPTED
        bad = [row for row in self.rows.values() if row.status != "ok"]
        if self.elsewhere or not bad:
            return CELLS_FAILED if self.elsewhere else OK
        missing = all(row.failure is not None and row.failure.kind == "prerequisite" for row in bad)
        return PREREQUISITE if missing else CELLS_FAILED
