"""Checks of a suite: each has an id and a promise, and the report says which of them ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fcilbench.suite.cell import Cell
from fcilbench.suite.problems import Problem

Probe = Callable[[Cell], str | None]
"""Runs one tiny forward and aggregate for a cell's plugins; returns what went wrong, or `None`."""


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check.

    Attributes:
        id: Name of the check.
        promise: What it proves.
        ran: Whether it ran; a check does not run if one that it builds on found problems.
        problems: What it found.
    """

    id: str
    promise: str
    ran: bool
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Report:
    """What `check` found.

    Attributes:
        results: One per check, in order.
        prerequisites: What is missing on this machine.
        cells: Number of cells of a valid suite.
    """

    results: list[CheckResult]
    prerequisites: list[str]
    cells: int

    @property
    def problems(self) -> list[Problem]:
        """All problems of all checks."""
        return [problem for result in self.results for problem in result.problems]


def check_help(deep: bool = True) -> str:
    """Returns one line per check, generated from the registry of checks."""
    raise NotImplementedError


def run_checks(path: Path | str, overrides: Sequence[str] = (), deep: Probe | None = None) -> Report:
    """Runs the checks."""
    raise NotImplementedError
