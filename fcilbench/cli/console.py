"""Where text goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fcilbench.errors import INTERNAL, FcilbenchError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class State:
    """What `-q` and `-v` ask for, for the whole process.

    Attributes:
        quiet: Show errors and results only.
        verbose: Show tracebacks and debug messages.
    """

    quiet: bool = False
    verbose: bool = False


state = State()
WIDTH = 160
"""Columns of a table that does not go to a terminal."""


@lru_cache(maxsize=1)
def out() -> Console:
    """Returns the console of standard output; a file or pipe gets plain text, not cut to a terminal's width."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


@lru_cache(maxsize=1)
def err() -> Console:
    """Returns the console of standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """Prints a line for the user on standard error, unless `-q`."""
    if not state.quiet:
        err().print(text, style=style, markup=False)


def show(text: str) -> None:
    """Prints result text on standard output as it is."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def show_json(body: dict[str, Any]) -> None:
    """Prints a JSON document on standard output; each has an integer `schema` that rises when its form changes."""
    show(json.dumps(body, indent=2, ensure_ascii=False, default=str))


def show_rows(headers: Sequence[str], rows: Iterable[Sequence[object]], form: str = "table") -> None:
    """Prints a table on standard output.

    Args:
        headers: Titles of the columns; none prints no header line.
        rows: Texts of each row.
        form: `table`, fitted to the terminal (off a terminal without the blanks that would fill its lines), or `md`.
    """
    if form == "md":
        marked = [headers, ["---"] * len(headers), *rows]
        show("\n".join(f"| {' | '.join(_md(value) for value in line)} |" for line in marked))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=bool(headers))
    texts = [[Text(str(value)) for value in row] for row in rows]
    for index in range(len(headers) or max(map(len, texts), default=0)):
        table.add_column(headers[index] if headers else "", overflow="fold", no_wrap=index == 0)
    for line in texts:
        table.add_row(*line)
    console = out()
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    show("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _md(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def report(error: BaseException) -> int:
    """Prints an error on standard error, one line and a hint; the traceback only with `-v`.

    Returns:
        The exit code of the process.
    """
    if state.verbose:
        sys.stderr.write("".join(traceback.format_exception(error)))
    if isinstance(error, FcilbenchError):
        sys.stderr.write(f"error: {error}\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return error.exit_code
    text = " ".join(str(error).split())
    sys.stderr.write(f"internal error: {type(error).__name__}: {text}\n")
    if not state.verbose:
        sys.stderr.write("hint: run it again with -v for the traceback, and report it\n")
    return INTERNAL


class _Lines(logging.Handler):
    """Log records as single lines on the console of standard error, above a running progress display."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            style = "yellow" if record.levelno >= logging.WARNING else "dim"
            err().print(f"{record.levelname.lower()}: {record.getMessage()}", style=style, markup=False)
        except Exception:
            self.handleError(record)


def log_to_stderr() -> None:
    """Sends the program's log to standard error: warnings, or everything with `-v`, or errors only with `-q`."""
    level = logging.DEBUG if state.verbose else logging.ERROR if state.quiet else logging.WARNING
    logger = logging.getLogger("fcilbench")
    logger.setLevel(level)
    logger.propagate = False
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines())
