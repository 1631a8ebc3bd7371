"""What a workflow shows while it works, and to whom: the terminal, a notebook, or by default nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fcilbench.execution.base import RunDisplay


def _nothing(_text: str) -> None:
    """Shows nothing."""


@dataclass(frozen=True)
class Screen:
    """Where a workflow tells what it does.

    Attributes:
        say: Is told one line that the user may want to read.
        warn: Is told one line that the user should read.
        display: Makes what shows the progress of one run.
    """

    say: Callable[[str], None] = _nothing
    warn: Callable[[str], None] = _nothing
    display: Callable[[], RunDisplay] = RunDisplay


SILENT = Screen()
