"""Who watches a run. Observers never fail a cell: what they raise is logged once and the run goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from fcilbench.execution.devices import Slot
from fcilbench.execution.messages import Event
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row

_log = logging.getLogger(__name__)


class Progress:
    """What a display of a run is told, in the supervisor's thread; it should return quickly. This one shows nothing."""

    def run_started(self, cells: int, slots: Sequence[Slot]) -> None:
        """A run begins that owes `cells` rows."""

    def cell_started(self, slot: Slot, cell: Cell, cell_id: str, attempt: int) -> None:
        """An attempt at a cell begins on a slot."""

    def cell_event(self, slot: Slot, cell_id: str, event: Event) -> None:
        """The worker reports a phase, a round, a task or a log line."""

    def cell_retried(self, slot: Slot, cell: Cell, cell_id: str, reason: str) -> None:
        """An attempt failed and the cell waits for its next one."""

    def cell_finished(self, slot: Slot | None, row: Row) -> None:
        """A cell has its row; without a slot it was never started."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def run_finished(self) -> None:
        """The run is over."""


class Guard:
    """Calls an observer and survives what it raises.

    Args:
        name: What the warning calls the observer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._warned = False

    def __call__(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls `function(*arguments)`; the first exception is logged, none gets through."""
        try:
            function(*arguments)
        except Exception as error:  # whatever it is, it is not the cell's problem
            if not self._warned:
                self._warned = True
                _log.warning("%s: %s: %s", self._name, type(error).__name__, error)
