"""Errors that reach a user: one clear line, a hint, and the exit code of the process.

Exit codes (documented in docs/commands.md, tested): 0 all selected cells ok; 1 internal error; 2 usage or invalid
suite; 3 finished, some cells not ok; 4 nothing selected; 5 prerequisite missing; 130 interrupted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

OK, INTERNAL, USAGE, CELLS_FAILED, NOTHING_SELECTED, PREREQUISITE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


class FcilbenchError(Exception):
    """Base of the errors that are shown without a traceback.

    Args:
        message: What is wrong, in one line.
        where: Where it is wrong (`file:line:column` for suites), put before the message.
        hint: What to do about it, put on a second line.
    """

    exit_code = INTERNAL

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where
        self.hint = hint

    @property
    def lines(self) -> list[str]:
        """The lines of the message: one, but for a suite, which has a line for each problem."""
        return [str(self)]


class UsageError(FcilbenchError):
    """The command line or a suite asks for something that does not exist."""

    exit_code = USAGE


class SuiteError(UsageError):
    """A suite file is invalid; `where` is `file:line:column`."""


KeyPath = tuple[str | int, ...]
"""Keys and indices from the root of a suite, or of a plugin's options, to one of its values."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a value that a user wrote.

    Attributes:
        message: What is wrong, in one line, with the nearest legal word where there is one.
        path: Path of the value, which may be missing; empty if the options of a plugin are wrong as a whole.
        hint: What to do about it.
        key: Whether the key at the path is wrong, not its value.
        check: The check that found it, see `fcilbench.suite.CHECKS`.
        where: `file:line:column`, or the `-s path=value` that gave the value; empty until it is looked up.
    """

    message: str
    path: KeyPath = ()
    hint: str | None = None
    key: bool = False
    check: str = "schema"
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class NothingSelectedError(FcilbenchError):
    """The filters leave no cell to work on."""

    exit_code = NOTHING_SELECTED


class PrerequisiteError(FcilbenchError):
    """Data, weights, a GPU or a plugin is missing on this machine."""

    exit_code = PREREQUISITE


class DataError(PrerequisiteError):
    """A data set is missing, incomplete or not the one that was declared."""


class PluginError(FcilbenchError):
    """A plugin broke its contract, e.g. left a model that is not finite; the cell fails and the plugin is named."""


class DivergedError(FcilbenchError):
    """No client ever sent an update that could be merged; the cell fails."""


class PartitionError(FcilbenchError):
    """No partition of the samples meets the request; the message names what to change."""


def nearest(word: str, legal: Iterable[str]) -> str:
    """Returns `" (did you mean 'x'?)"` for the nearest legal word, or the list of legal words.

    Example:
        >>> nearest("agregator", ["aggregator", "dataset"])
        " (did you mean 'aggregator'?)"
    """
    words = sorted(set(legal))
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (one of: {', '.join(words)})" if words else ""
