"""Progress of a download on standard error: a bar on a terminal, one line an archive elsewhere, nothing with `-q`."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from fcilbench.cli import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Shows what `fcilbench.data.fetch` reports; a context manager."""

    def __init__(self) -> None:
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
        """Shows how much of an archive is here, in bytes."""
        if console.state.quiet:
            return
        if not console.err().is_terminal:
            if name not in self._said:
                self._said.add(name)
                console.say(f"fetching {name}" + (f", {total / 1e6:.1f} MB" if total else ""))
            return
        bars = self._bars or self._start()
        if name not in self._tasks:
            self._tasks[name] = bars.add_task(name, total=total)
        bars.update(self._tasks[name], completed=done, total=total)

    def _start(self) -> Progress:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description}"),
            *(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()),
            console=console.err(),
            transient=True,
        )
        self._bars.start()
        return self._bars
