"""Progress as plain lines, for logs, pipes and batch systems."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fcilbench.cli.prepare import duration
from fcilbench.execution.devices import Slot
from fcilbench.execution.messages import Event
from fcilbench.execution.observers import Progress
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row

_EVERY = 30.0  # seconds between two lines about rounds of one slot


class LineProgress(Progress):
    """One line when a cell starts and ends, and now and then one about its rounds.

    Args:
        say: Prints a line.
        clock: Seconds; for tests.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._total = 0
        self._done = 0
        self._names: dict[Slot, str] = {}
        self._last: dict[Slot, float] = {}

    def run_started(self, cells: int, slots: Sequence[Slot]) -> None:
        """Says how much there is to do, and where."""
        self._total = cells
        places = ", ".join(sorted({slot.label for slot in slots}))
        self._say(f"running {cells} cells in {len(slots)} slot{'s' * (len(slots) > 1)} on {places}")

    def cell_started(self, slot: Slot, cell: Cell, cell_id: str, attempt: int) -> None:
        """Says which cell starts."""
        self._names[slot] = f"{cell_id[:12]} {cell_name(cell.coords)}"
        self._last[slot] = self._clock()
        again = f" (attempt {attempt})" if attempt > 1 else ""
        self._say(f"{slot.label}: start {self._names[slot]}{again}")

    def cell_event(self, slot: Slot, cell_id: str, event: Event) -> None:
        """Says how a long cell gets on."""
        if event["event"] == "round" and self._clock() - self._last.get(slot, 0.0) >= _EVERY:
            self._last[slot] = self._clock()
            self._say(f"{slot.label}: {self._names.get(slot, cell_id[:12])}: {where(event)}")

    def cell_retried(self, slot: Slot, cell: Cell, cell_id: str, reason: str) -> None:
        """Says why a cell is tried again."""
        self._say(f"{slot.label}: retry {cell_id[:12]} {cell_name(cell.coords)}: {reason}")

    def cell_finished(self, slot: Slot | None, row: Row) -> None:
        """Says how a cell ended."""
        self._done += 1
        self._say(f"[{self._done}/{self._total}] {verdict(row)}")

    def note(self, text: str) -> None:
        """Says it."""
        self._say(text)


def cell_name(coords: dict[str, str | int]) -> str:
    """Returns a cell's place on the grid in short, e.g. `digits/timm/iid/sum/none#0`."""
    return "/".join(str(value) for axis, value in coords.items() if axis != "seed") + f"#{coords.get('seed', 0)}"


def where(event: Event) -> str:
    """Returns task, round and loss of a round's event, counted from one."""
    loss = event.get("loss")
    text = f"task {event.get('task', 0) + 1}/{event.get('tasks', 1)} "
    text += f"round {event.get('round', 0) + 1}/{event.get('rounds', 1)}"
    return f"{text} loss {loss:.3f}" if isinstance(loss, float) else text


def verdict(row: Row) -> str:
    """Returns a line on how a cell ended."""
    line = f"{row.status} {row.cell_id[:12]} {cell_name(row.coords)}"
    if row.status == "ok":
        metrics = [(name, metric.value) for name, metric in row.metrics.items() if name.startswith("faa/")]
        figures = "  ".join(f"{name} {value:.4f}" for name, value in metrics if value is not None)
        return f"{line}  {duration(row.cost.wall_s)}  {figures}"
    reason = row.skipped or (row.failure.message if row.failure else "")
    return f"{line}  {reason}"
