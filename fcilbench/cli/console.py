"""Output of the commands: results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fcilbench.errors import INTERNAL, FcilbenchError, PrerequisiteError, UsageError
from fcilbench.escape import clean, line
from fcilbench.tables import comma_separated, markdown, text_table

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class State:
    """The options `-q` and `-v` of this process."""

    quiet: bool = False
    verbose: bool = False


state = State()
WIDTH = 160
"""Columns of a table that does not go to a terminal."""


@lru_cache(maxsize=1)
def err() -> Console:
    """Returns the console of standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def width() -> int:
    """Returns the number of columns of a table on standard output."""
    return shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else WIDTH


def say(text: str, style: str | None = None) -> None:
    """Prints a line on standard error, unless `-q` is set."""
    if not state.quiet:
        err().print(_one_line(text), style=style, markup=False)


def warn(text: str) -> None:
    """Prints a warning on standard error, if there is one."""
    if text:
        err().print(f"warning: {_one_line(text)}", style="yellow", markup=False)


def show(text: str | Iterable[str]) -> None:
    """Prints a result on standard output: a whole text, or lines, of which none can pass for two.

    Characters that could control the terminal are spelt out.
    """
    if isinstance(text, str):
        sys.stdout.write(clean(text if text.endswith("\n") else f"{text}\n"))
    else:
        sys.stdout.writelines(f"{_one_line(each)}\n" for each in text)


def _one_line(text: str) -> str:
    """Returns clean text in which line ends are spelt out, too: what a row or a plugin says cannot forge a line."""
    return clean(text).replace("\n", "\\n")


def show_list(
    form: str,
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    key: str,
    records: Iterable[Mapping[str, Any] | str] = (),
    right: Collection[int] = (),
    **about: Any,
) -> None:
    """Prints a list on standard output: as a table, in Markdown or in CSV (from `rows`), or as JSON (from `records`).

    Args:
        form: One of `options.Form`; `tex` and `html` are for boards only.
        headers: Titles of the columns; a `table` without titles has no header.
        rows: Texts of each row.
        key: Name of the list in the JSON document.
        records: The same things as JSON objects, or as their JSON texts.
        right: Numbers of the columns that are aligned to the right.
        **about: Other facts for the JSON document.
    """
    if form in ("tex", "html"):
        raise UsageError(f"a list has no form {form!r}", hint="only boards are printed as tex and html")
    lines = (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, default=str) for each in records)
    if form == "json":
        head = json.dumps({"schema": 1, **about}, indent=2, ensure_ascii=False, default=str).removesuffix("\n}")
        show(f'{head},\n  "{key}": [')
        for number, each in enumerate(lines):
            show(f"{',' if number else ' '} {each}")
        show("]}")
    elif form == "jsonl":
        for each in lines:
            show(each)
    elif form == "csv":
        show(comma_separated(headers, rows))
    elif form == "md":
        show("\n".join(markdown(headers, rows, right)))
    else:
        show("\n".join(text_table([headers] if headers else [], rows, width=width(), right=right)))


def report(error: BaseException) -> int:
    """Prints an error in one line and a hint, with `-v` its traceback, and returns the exit code of the process."""
    if state.verbose:
        sys.stderr.write("".join(traceback.format_exception(error)))
    if isinstance(error, OSError) and error.strerror:  # e.g. a full disk
        place = f"{error.filename}: " if error.filename else ""
        error = PrerequisiteError(f"{place}{error.strerror}", hint="make room or grant access, or name another place")
    if isinstance(error, FcilbenchError):
        sys.stderr.write("error: " + "\n".join(map(_one_line, error.lines)) + "\n")
        if error.hint:
            sys.stderr.write(f"hint: {_one_line(error.hint)}\n")
        return error.exit_code
    sys.stderr.write(f"internal error: {type(error).__name__}: {line(error)}\n")
    if not state.verbose:
        sys.stderr.write("hint: run it again with -v for the traceback, and report it\n")
    return INTERNAL


class _Lines(logging.Handler):
    """Prints log records as single lines on standard error, above progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        err().print(f"{record.levelname.lower()}: {_one_line(record.getMessage())}", style=style, markup=False)


def log_to_stderr() -> None:
    """Sends the program's log to standard error: warnings, with `-v` everything, with `-q` only errors."""
    level = logging.DEBUG if state.verbose else logging.ERROR if state.quiet else logging.WARNING
    logger = logging.getLogger("fcilbench")
    logger.setLevel(level)
    logger.propagate = False
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines())
