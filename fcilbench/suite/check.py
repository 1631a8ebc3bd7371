"""Runs the checks of a suite, and says which of them ran and what each found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from fcilbench.errors import Problem
from fcilbench.spec.cell import Cell
from fcilbench.suite import CHECKS
from fcilbench.suite.expand import Expansion, expand
from fcilbench.suite.load import load_suite
from fcilbench.suite.yaml import InvalidSuiteError

Probe = Callable[[Sequence[Cell]], Sequence[str | None]]
"""Runs one tiny forward and aggregate for each cell's plugins; returns what went wrong, or `None`."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found; it did not run if a check before it found problems."""

    id: str
    promise: str
    ran: bool
    problems: tuple[Problem, ...] = ()


def run_checks(
    path: Path | str, overrides: Sequence[str] = (), deep: Probe | None = None
) -> tuple[list[CheckResult], Expansion]:
    """Runs the checks on a suite; writes nothing.

    `deep` runs the check of this name on one cell of each combination of plugins; `None` leaves it out.

    Returns:
        The result of each check, in order, and the cells of the suite: none if it is invalid.
    """
    checks = [check for check in CHECKS if deep or check != "deep"]
    expansion = Expansion("")
    try:
        expansion = expand(load_suite(path, overrides))
        ran: Set[str] = set(checks)
        problems = expansion.unused
        for reason, names in (probe_combinations(expansion.cells, deep) if deep else {}).items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            problems.append(Problem(f"{names[0]}{more}: {reason}", check="deep", where=str(path)))
    except InvalidSuiteError as error:
        ran, problems = error.ran, [*error.problems]
    results = []
    for check in checks:
        found = tuple(problem for problem in problems if problem.check == check)
        results.append(CheckResult(check, CHECKS[check], check in ran or bool(found), found))
    return results, expansion


def probe_combinations(cells: Sequence[Cell], probe: Probe) -> dict[str, list[str]]:
    """Probes the first cell of each combination of plugins and parameters.

    Returns the combinations that failed, by the reason.
    """
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(repr([(use.name, use.params) for use in cell.plugins.values()]), cell)
    found = defaultdict[str, list[str]](list)
    for cell, reason in zip(first.values(), probe(list(first.values())), strict=True):
        if reason is not None:
            found[reason].append(" + ".join(use.label for use in cell.plugins.values()))
    return found
