"""Progress on standard error: bars on a terminal, lines elsewhere, nothing with `-q`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from typing_extensions import override

from fcilbench.cli import console
from fcilbench.escape import line
from fcilbench.execution.base import RunDisplay
from fcilbench.spec.cell import Cell
from fcilbench.spec.events import standing
from fcilbench.spec.row import Row
from fcilbench.tables import duration
from fcilbench.worker.events import Event

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


_EVERY = 30.0  # seconds between two lines about one thing
_COLOURS = {"ok": "green", "skipped": "yellow", "interrupted": "yellow"}


class Display:
    """Named bars on a terminal; elsewhere a line when each thing starts, and one from time to time.

    Args:
        verb: Word before each name in lines, e.g. `fetching`.
        unit: What is counted, e.g. `bytes`.
    """

    def __init__(self, verb: str, unit: str = "") -> None:
        self._verb, self._unit = verb, unit
        self.live = console.err().is_terminal
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}

    def show(self, name: str, done: float, total: float | None, note: str = "") -> None:
        """Shows how much of a thing is done."""
        if console.state.quiet:
            return
        if not self.live:
            if name not in self._said:
                console.say(f"{self._verb} {name}" + (f" ({total:,} {self._unit})" if total and self._unit else ""))
            elif note and monotonic() - self._said[name] >= _EVERY:
                console.say(f"{name}: {note}")
            else:
                return
            self._said[name] = monotonic()
            return
        if self._bars is None:
            from fcilbench.cli.bars import start_bars

            self._bars = start_bars(console.err())
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(line(name), total=total, note="")
        self._bars.update(self._tasks[name], completed=done, total=total, note=line(note))

    def drop(self, name: str) -> None:
        """Takes the bar of this name off the screen, if there is one."""
        if self._bars is not None and name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))

    def close(self) -> None:
        """Takes all bars off the screen and restores the terminal."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class RunProgress(RunDisplay):
    """Progress of a run: a bar for the suite and one for each cell, or lines."""

    def __init__(self) -> None:
        self._display = Display("start")
        self._done = self._total = 0
        self._names: dict[str, str] = {}
        self._shares: dict[str, float] = {}

    @override
    def run_started(self, cells: int, places: Sequence[str], awaited: int = 0) -> None:
        self._total = cells
        devices, own = ", ".join(sorted(set(places))), cells - awaited
        if own:
            console.say(f"running {own} cells in {len(places)} slot{'s' * (len(places) > 1)} on {devices}")
        if awaited:
            console.say(f"waiting for {awaited} cell{'s' * (awaited > 1)} that another run trains")

    @override
    def cell_started(self, place: str, cell: Cell, cell_id: str, attempt: int) -> None:
        again = f" (attempt {attempt})" if attempt > 1 else ""
        self._names[cell_id] = f"{place} {cell_id[:12]} {cell_name(cell.coords)}{again}"
        self._show_cell(cell_id, 0.0, "starting")

    @override
    def cell_event(self, cell_id: str, event: Event) -> None:
        share, text = standing(event)
        if text and cell_id in self._names:
            self._show_cell(cell_id, max(share, self._shares.get(cell_id, 0.0)), text)

    @override
    def cell_retried(self, cell: Cell, cell_id: str, reason: str) -> None:
        self._clear(cell_id)
        console.say(f"retry {cell_id[:12]} {cell_name(cell.coords)}: {reason}", style="yellow")

    @override
    def cell_finished(self, row: Row) -> None:
        self._clear(row.cell_id)
        self._done += 1
        console.say(f"[{self._done}/{self._total}] {ending(row)}", style=_COLOURS.get(row.status, "red"))
        self._show_suite()

    @override
    def note(self, text: str) -> None:
        console.say(text, style="yellow")

    @override
    def suite_finished(self, interrupted: bool = False) -> None:
        self._display.close()

    def _show_cell(self, cell_id: str, share: float, text: str) -> None:
        self._shares[cell_id] = share
        self._display.show(self._names[cell_id], share, 1.0, text)
        self._show_suite()

    def _clear(self, cell_id: str) -> None:
        self._shares.pop(cell_id, None)
        self._display.drop(self._names.pop(cell_id, ""))

    def _show_suite(self) -> None:
        if self._display.live:
            completed = self._done + sum(self._shares.values())
            self._display.show("suite", completed, float(self._total), f"{self._done}/{self._total} cells")


def cell_name(coords: Mapping[str, str | int]) -> str:
    """Returns a short name of a cell, e.g. `digits/timm/iid/sum/none#0`."""
    return "/".join(str(value) for axis, value in coords.items() if axis != "seed") + f"#{coords.get('seed', 0)}"


def ending(row: Row) -> str:
    """Returns one line that says how a cell ended."""
    text = f"{row.status} {row.cell_id[:12]} {cell_name(row.coords)}"
    if row.status != "ok":
        raised = f"{row.failure.type}: " if row.failure and row.failure.traceback_path else ""
        return f"{text}  {raised}{row.reason}"
    metrics = [(name, metric.value) for name, metric in row.metrics.items() if name.startswith("faa/")]
    figures = "  ".join(f"{name} {value:.4f}" for name, value in metrics if value is not None)
    return f"{text}  {duration(row.cost.wall_s)}  {figures}"
