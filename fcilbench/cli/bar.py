"""Progress of files and data sets on standard error: bars on a terminal, one line each elsewhere, nothing with `-q`."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from fcilbench.cli import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Shows how far something is, by name; a context manager.

    Args:
        verb: What is done, e.g. `fetching`.
        unit: `bytes` or what else is counted.
    """

    def __init__(self, verb: str, unit: str) -> None:
        self._verb, self._unit = verb, unit
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: set[str] = set()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, name: str, done: int, total: int | None) -> None:
        """Shows how much of `name` is done."""
        if console.state.quiet:
            return
        if not console.err().is_terminal:
            if name not in self._said:
                self._said.add(name)
                console.say(f"{self._verb} {name}" + (f" ({total:,} {self._unit})" if total else ""))
            return
        bars = self._bars or self._start()
        if name not in self._tasks:
            self._tasks[name] = bars.add_task(name, total=total)
        bars.update(self._tasks[name], completed=done, total=total)

    def _start(self) -> Progress:
        from rich import progress

        counted = (progress.MofNCompleteColumn(), progress.TimeElapsedColumn())
        weighed = (progress.DownloadColumn(), progress.TransferSpeedColumn())
        self._bars = progress.Progress(
            progress.TextColumn(f"{self._verb} {{task.description}}"),
            progress.BarColumn(),
            *(weighed if self._unit == "bytes" else counted),
            progress.TimeRemainingColumn(),
            console=console.err(),
            transient=True,
        )
        self._bars.start()
        return self._bars
