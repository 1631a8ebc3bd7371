"""Progress on a terminal: a bar for the suite, and for each slot its cell, task, round, loss and time."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column

from fcilbench.cli.lines import cell_name, verdict, where
from fcilbench.execution.devices import Slot
from fcilbench.execution.messages import Event
from fcilbench.execution.observers import Progress
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row

_COLOURS = {"ok": "green", "skipped": "yellow", "interrupted": "yellow"}


class LiveProgress(Progress):
    """Live bars on standard error; finished cells scroll up as lines.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f}%", table_column=Column(min_width=4)),
            TimeElapsedColumn(table_column=Column(min_width=7)),
            TimeRemainingColumn(table_column=Column(min_width=7)),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        ]
        self._bars = Bars(*columns, console=console, transient=True, refresh_per_second=4, speed_estimate_period=3600)
        self._suite: TaskID | None = None
        self._slots: dict[Slot, TaskID] = {}
        self._shares: dict[Slot, float] = {}
        self._done = 0
        self._total = 0

    def run_started(self, cells: int, slots: Sequence[Slot]) -> None:
        """Puts up the bars."""
        self._total = cells
        self._suite = self._bars.add_task("suite", total=cells, note=f"0/{cells} cells")
        self._bars.start()

    def cell_started(self, slot: Slot, cell: Cell, cell_id: str, attempt: int) -> None:
        """Gives the slot a bar for its cell."""
        self._clear(slot)
        name = f"{slot.label} {cell_name(cell.coords)}" + (f" (attempt {attempt})" if attempt > 1 else "")
        self._slots[slot] = self._bars.add_task(escape(name), total=1.0, note="starting")

    def cell_event(self, slot: Slot, cell_id: str, event: Event) -> None:
        """Moves the cell's bar, and by its share the suite's."""
        if slot not in self._slots:
            return
        if event["event"] == "decoding":
            self._bars.update(
                self._slots[slot], note=f"decoding {event.get('done', 0)}/{event.get('total', 0)} samples"
            )
            return
        share = fraction(event)
        if share is None:
            return
        self._shares[slot] = max(share, self._shares.get(slot, 0.0))
        note = where(event) if event["event"] == "round" else f"task {event.get('task', 0) + 1}/{event.get('tasks', 1)}"
        self._bars.update(self._slots[slot], completed=self._shares[slot], note=note)
        self._move_suite()

    def cell_retried(self, slot: Slot, cell: Cell, cell_id: str, reason: str) -> None:
        """Lets the slot's bar go."""
        self._clear(slot)
        self._bars.console.print(
            f"retry {cell_id[:12]} {cell_name(cell.coords)}: {reason}", style="yellow", markup=False
        )

    def cell_finished(self, slot: Slot | None, row: Row) -> None:
        """Prints how the cell ended."""
        if slot is not None:
            self._clear(slot)
        self._done += 1
        self._bars.console.print(verdict(row), style=_COLOURS.get(row.status, "red"), markup=False)
        self._move_suite()

    def note(self, text: str) -> None:
        """Prints it."""
        self._bars.console.print(text, style="yellow", markup=False)

    def run_finished(self) -> None:
        """Takes the bars down."""
        self._bars.stop()

    def _clear(self, slot: Slot) -> None:
        self._shares.pop(slot, None)
        if slot in self._slots:
            self._bars.remove_task(self._slots.pop(slot))

    def _move_suite(self) -> None:
        if self._suite is not None:
            completed = self._done + sum(self._shares.values())
            self._bars.update(self._suite, completed=completed, note=f"{self._done}/{self._total} cells")


def fraction(event: Event) -> float | None:
    """Returns how far its cell is at the end of what an event reports, in [0, 1]; `None` if it does not say.

    Example:
        >>> fraction({"event": "round", "task": 1, "tasks": 4, "round": 0, "rounds": 2})
        0.375
    """
    if event["event"] not in ("phase", "round", "task"):
        return None
    task, tasks = int(event.get("task", 0)), max(1, int(event.get("tasks", 1)))
    within = {"phase": 0.0, "task": 1.0}.get(event["event"])
    if within is None:
        within = (int(event.get("round", 0)) + 1) / max(1, int(event.get("rounds", 1)))
    return min(1.0, (task + within) / tasks)
