"""The bars of a terminal: what has a fixed width stays, and texts are shortened to the rest. Imported when drawn."""

from __future__ import annotations

from collections.abc import Callable

from rich import progress
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column
from rich.text import Text
from typing_extensions import override

from fcilbench.tables import cut

_BAR_FROM = 80
"""Columns of a terminal that has room for the bar itself beside its figures."""


def shorten(text: str, width: int) -> str:
    """Returns a text of at most `width` characters: of a longer one the beginning and the end.

    A cell's name begins with its place and its id, and ends with its method and its seed.

    Example:
        >>> shorten("cpu 0123456789ab digits/timm/iid/sum/none#0", 24)
        'cpu 01234567…/sum/none#0'
    """
    if len(text) <= width:
        return text
    tail = max(0, width - 1) // 2
    return text[: max(0, width - 1 - tail)] + "…" * (width > 0) + text[len(text) - tail :]


class _Shortened:
    """A text in one line that is shortened to the width of its column by `how`."""

    def __init__(self, text: str, how: Callable[[str, int], str]) -> None:
        self._text, self._how = text, how

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self._how(self._text, options.max_width), no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, len(self._text)))


class _Label(progress.ProgressColumn):
    """A field of a task as text, in a share of the columns that the figures leave.

    Args:
        name: `description`, or a field of the task.
        share: Share of the room, in comparison with that of other labels.
        how: What shortens it.
    """

    def __init__(self, name: str, share: int, how: Callable[[str, int], str]) -> None:
        self._name, self._how = name, how
        super().__init__(Column(ratio=share, no_wrap=True))

    @override
    def render(self, task: progress.Task) -> _Shortened:
        return _Shortened(str(task.fields.get(self._name, task.description)), self._how)


def start_bars(console: Console) -> progress.Progress:
    """Shows bars on a terminal, of tasks with a field `note`, until they are stopped.

    Percentage, elapsed time and time left are shown whole however narrow it is.
    """
    figures = (progress.TaskProgressColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    bar = (progress.BarColumn(bar_width=12),) if console.width >= _BAR_FROM else ()
    bars = progress.Progress(
        _Label("description", 3, shorten),
        *bar,
        *figures,
        _Label("note", 2, cut),
        console=console,
        transient=True,
        expand=True,
        refresh_per_second=4,
        speed_estimate_period=3600,
    )
    bars.start()
    return bars
