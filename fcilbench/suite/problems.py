"""Problems of a suite: checkers say which value is wrong, and its place in the file is found once, at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fcilbench.errors import SuiteError

KeyPath = tuple[str | int, ...]
"""Keys and indices from the root of a suite to one of its values."""

_LONGEST_LINE, _MOST_LINES = 600, 100


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a value of a suite.

    Attributes:
        message: What, with the nearest legal word where there is one.
        path: The value's path in the suite; the value may be missing.
        key: Whether the value's key is wrong.
        hint: What to do about it.
        check: Id of the check that found it (see `fcilbench.suite.check`).
    """

    message: str
    path: KeyPath
    key: bool = False
    hint: str | None = None
    check: str = "schema"


@dataclass(frozen=True)
class Problem:
    """A finding with its place, `file:line:column` or the `-s` override that it comes from; each in one short line."""

    message: str
    where: str
    hint: str | None = None
    check: str = "schema"

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", one_line(self.message))
        object.__setattr__(self, "where", one_line(self.where))

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class InvalidSuiteError(SuiteError):
    """A suite is invalid: one line for each problem, in the order of their places.

    Args:
        problems: At least one.
        ran: Ids of the checks that ran to their end.
    """

    def __init__(self, problems: Iterable[Problem], ran: Iterable[str] = ()) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=_place))
        self.ran = frozenset(ran)
        hints = list(dict.fromkeys(problem.hint for problem in self.problems if problem.hint))
        if len(self.problems) == 1:
            super().__init__(self.problems[0].message, where=self.problems[0].where, hint=hints[0] if hints else None)
            return
        lines, more = [str(problem) for problem in self.problems[:_MOST_LINES]], len(self.problems) - _MOST_LINES
        super().__init__(
            "\n".join([*lines, f"and {more:,} more"] if more > 0 else lines), hint="; ".join(hints) or None
        )


def one_line(text: str) -> str:
    """Returns a text as one short line: unprintable characters are escaped, a long middle is left out."""
    if len(text) > _LONGEST_LINE:
        text = f"{text[: _LONGEST_LINE // 2]} ... {text[-_LONGEST_LINE // 3 :]}"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _place(problem: Problem) -> tuple[str, int, int]:
    match = re.fullmatch(r"(.*):(\d+):(\d+)", problem.where)
    return (match[1], int(match[2]), int(match[3])) if match else (problem.where, 0, 0)
