"""Progress on standard error: bars on a terminal, single lines elsewhere, nothing with `-q`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fcilbench.cli import console
from fcilbench.execution.base import Progress
from fcilbench.tables import line

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from fcilbench.execution.base import Handle
    from fcilbench.registry.process import Event
    from fcilbench.spec.cell import Cell
    from fcilbench.spec.row import Row

_EVERY = 30.0  # seconds between two lines about rounds of one cell
_COLOURS = {"ok": "green", "skipped": "yellow", "interrupted": "yellow"}


class Display:
    """Named bars if standard error is a terminal, or one line when each thing starts; a context manager.

    Args:
        verb: What is done, e.g. `fetching`; put before each name.
        unit: `bytes`, or what else is counted.
        bars: Whether to draw bars, whatever standard error is.
    """

    def __init__(self, verb: str = "", unit: str = "", bars: bool | None = None) -> None:
        self._verb, self._unit = verb, unit
        self.live = console.err().is_terminal if bars is None else bars
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: set[str] = set()

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(self, name: str, done: float, total: float | None, note: str = "") -> None:
        """Shows how much of `name` is done."""
        if console.state.quiet:
            return
        if not self.live:
            if name not in self._said:
                self._said.add(name)
                console.say(f"{self._verb} {name}" + (f" ({total:,} {self._unit})" if total else ""))
            return
        self._bars = self._bars or self._start()
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(line(f"{self._verb} {name}".strip()), total=total, note="")
        self._bars.update(self._tasks[name], completed=done, total=total, note=note)

    def drop(self, name: str) -> None:
        """Removes a bar."""
        if self._bars is not None and name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))

    def close(self) -> None:
        """Removes all bars."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _start(self) -> Bars:
        from rich import progress
        from rich.table import Column

        text = Column(no_wrap=True, overflow="ellipsis")
        weighed = (progress.DownloadColumn(), progress.TransferSpeedColumn()) if self._unit == "bytes" else ()
        bars = progress.Progress(
            progress.TextColumn("{task.description}", table_column=text, markup=False),
            progress.BarColumn(bar_width=12),
            progress.TextColumn("{task.percentage:>3.0f}%", table_column=Column(min_width=4)),
            *weighed,
            progress.TimeElapsedColumn(table_column=Column(min_width=7)),
            progress.TimeRemainingColumn(table_column=Column(min_width=7)),
            progress.TextColumn("{task.fields[note]}", table_column=text, markup=False),
            console=console.err(),
            transient=True,
            refresh_per_second=4,
            speed_estimate_period=3600,
        )
        bars.start()
        return bars


class RunProgress(Progress):
    """Progress of a run: on a terminal a bar for the suite and one for each cell; elsewhere lines, seldom ones."""

    def __init__(self, display: Display | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display or Display()
        self._clock = clock
        self._done = self._total = 0
        self._names: dict[Handle, str] = {}
        self._shares: dict[Handle, float] = {}
        self._last: dict[Handle, float] = {}

    def run_started(self, cells: int, places: Sequence[str]) -> None:
        """Shows how much there is to do, and where."""
        self._total = cells
        if self._display.live:
            self._show_suite()
        else:
            devices = ", ".join(sorted(set(places)))
            console.say(f"running {cells} cells in {len(places)} slot{'s' * (len(places) > 1)} on {devices}")

    def cell_started(self, handle: Handle, cell: Cell, cell_id: str, attempt: int) -> None:
        """Shows which cell starts."""
        self._clear(handle)
        again = f" (attempt {attempt})" if attempt > 1 else ""
        self._names[handle] = f"{handle.label} {cell_id[:12]} {cell_name(cell.coords)}{again}"
        self._last[handle] = self._clock()
        if self._display.live:
            self._display.show(self._names[handle], 0.0, 1.0, "starting")
        else:
            console.say(f"start {self._names[handle]}")

    def cell_event(self, handle: Handle, cell_id: str, event: Event) -> None:
        """Shows how far a cell is."""
        name = self._names.get(handle, f"{handle.label} {cell_id[:12]}")
        if self._display.live:
            share = fraction(event)
            self._shares[handle] = max(share or 0.0, self._shares.get(handle, 0.0))
            if event["event"] == "decoding" or share is not None:
                self._display.show(name, self._shares[handle], 1.0, where(event))
                self._show_suite()
        elif event["event"] == "round" and self._clock() - self._last.get(handle, 0.0) >= _EVERY:
            self._last[handle] = self._clock()
            console.say(f"{name}: {where(event)}")

    def cell_retried(self, handle: Handle, cell: Cell, cell_id: str, reason: str) -> None:
        """Says why a cell is tried again."""
        self._clear(handle)
        console.say(f"retry {handle.label} {cell_id[:12]} {cell_name(cell.coords)}: {reason}", style="yellow")

    def cell_finished(self, handle: Handle | None, row: Row) -> None:
        """Says how a cell ended."""
        if handle is not None:
            self._clear(handle)
        self._done += 1
        console.say(f"[{self._done}/{self._total}] {ending(row)}", style=_COLOURS.get(row.status, "red"))
        if self._display.live:
            self._show_suite()

    def note(self, text: str) -> None:
        """Prints something that the user should know."""
        console.say(text, style="yellow")

    def run_finished(self) -> None:
        """Removes the bars."""
        self._display.close()

    def _clear(self, handle: Handle) -> None:
        self._shares.pop(handle, None)
        if handle in self._names:
            self._display.drop(self._names.pop(handle))

    def _show_suite(self) -> None:
        completed = self._done + sum(self._shares.values())
        self._display.show("suite", completed, float(self._total), f"{self._done}/{self._total} cells")


def cell_name(coords: Mapping[str, str | int]) -> str:
    """Returns a cell's place on the grid in short, e.g. `digits/timm/iid/sum/none#0`."""
    return "/".join(str(value) for axis, value in coords.items() if axis != "seed") + f"#{coords.get('seed', 0)}"


def where(event: Mapping[str, Any]) -> str:
    """Returns what an event reports of a cell, counted from one, e.g. `task 2/4 round 1/2 loss 0.412`."""
    if event["event"] == "decoding":
        return f"decoding {event.get('done', 0)}/{event.get('total', 0)} samples"
    text = f"task {event.get('task', 0) + 1}/{event.get('tasks', 1)}"
    if event["event"] != "round":
        return text
    loss = event.get("loss")
    text += f" round {event.get('round', 0) + 1}/{event.get('rounds', 1)}"
    return f"{text} loss {loss:.3f}" if isinstance(loss, float) else text


def ending(row: Row) -> str:
    """Returns a line on how a cell ended."""
    text = f"{row.status} {row.cell_id[:12]} {cell_name(row.coords)}"
    if row.status == "ok":
        metrics = [(name, metric.value) for name, metric in row.metrics.items() if name.startswith("faa/")]
        figures = "  ".join(f"{name} {value:.4f}" for name, value in metrics if value is not None)
        return f"{text}  {console.duration(row.cost.wall_s)}  {figures}"
    return f"{text}  {row.skipped or (row.failure.message if row.failure else '')}"


def fraction(event: Mapping[str, Any]) -> float | None:
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
