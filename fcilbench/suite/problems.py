"""Problems of a suite: each with its position; all that are found are raised as one error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fcilbench.errors import SuiteError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a suite.

    Attributes:
        message: What, with the nearest legal word where there is one.
        where: `file:line:column`, or the `-s` override it comes from.
        hint: What to do about it.
        check: Id of the check that found it (see `fcilbench.suite.check`).
    """

    message: str
    where: str
    hint: str | None = None
    check: str = "schema"

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class InvalidSuiteError(SuiteError):
    """A suite is invalid: one line for each problem.

    Args:
        problems: At least one, in the order of their positions.
        ran: Ids of the checks that ran to their end.
    """

    def __init__(self, problems: Iterable[Problem], ran: Iterable[str] = ()) -> None:
        self.problems = tuple(problems)
        self.ran = frozenset(ran)
        hints = list(dict.fromkeys(problem.hint for problem in self.problems if problem.hint))
        if len(self.problems) == 1:
            super().__init__(self.problems[0].message, where=self.problems[0].where, hint=hints[0] if hints else None)
        else:
            super().__init__("\n".join(map(str, self.problems)), hint="; ".join(hints) or None)
