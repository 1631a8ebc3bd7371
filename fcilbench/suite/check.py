"""Checks of a suite: each has an id and a promise, and the report says which of them ran.

The help of `fcilbench check` is generated from `CHECKS`, so that it cannot promise what is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fcilbench.errors import SuiteError
from fcilbench.spec.cell import Cell
from fcilbench.suite.expand import Expansion, expand
from fcilbench.suite.load import LoadedSuite, load_suite
from fcilbench.suite.needs import missing_data
from fcilbench.suite.problems import InvalidSuiteError, Problem

Probe = Callable[[Cell], str | None]
"""Runs one tiny forward and aggregate for a cell's plugins; returns what went wrong, or `None`."""


@dataclass(frozen=True)
class CheckSpec:
    """One check.

    Attributes:
        id: Its name; `Problem.check` refers to it.
        promise: What it proves when it finds nothing.
    """

    id: str
    promise: str


CHECKS = (
    CheckSpec("parse", "YAML 1.2 without duplicate keys; every file that it extends is there"),
    CheckSpec("schema", "known keys only, each with a value of the right type and range"),
    CheckSpec("plugins", "every plugin and board exists under one unambiguous name"),
    CheckSpec("params", "every parameter exists and its value is valid for the plugin or the protocol"),
    CheckSpec("tasks", "every split into tasks uses each class of its data set exactly once"),
    CheckSpec("rules", "conditions and values of tuned and exclude rules exist, and every rule matches a cell"),
    CheckSpec("cells", "labels are unique and no two cells are the same experiment"),
    CheckSpec("deep", "one tiny forward and aggregate works for each combination of plugins"),
)


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check.

    Attributes:
        id: Name of the check.
        promise: What it proves when it finds nothing.
        ran: Whether it ran to its end; it does not if one that it builds on found problems.
        problems: What it found.
    """

    id: str
    promise: str
    ran: bool
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Report:
    """What the checks found.

    Attributes:
        results: One per check that was asked for, in order.
        prerequisites: What is missing on this machine; cells that need it were not checked any further.
        cells: Number of cells of a valid suite, blocked ones included.
    """

    results: list[CheckResult]
    prerequisites: list[str]
    cells: int

    @property
    def problems(self) -> list[Problem]:
        """All problems of all checks."""
        return [problem for result in self.results for problem in result.problems]


def check_help() -> str:
    """Returns one line per check for the help of `fcilbench check`."""
    width = max(len(each.id) for each in CHECKS)
    return "\n".join(
        f"{each.id:<{width}}  {each.promise}{' (with --deep)' if each.id == 'deep' else ''}" for each in CHECKS
    )


def run_checks(path: Path | str, overrides: Sequence[str] = (), deep: Probe | None = None) -> Report:
    """Runs the checks on a suite; writes nothing.

    Args:
        path: The suite's file.
        overrides: Values of `-s`.
        deep: Runs the `deep` check on one cell of each combination of plugins; `None` leaves it out.

    Raises:
        UsageError: If an override is not of the form `path=value`. What is wrong with the suite is in the report.
    """
    ran: set[str] = set()
    problems: list[Problem] = []
    expansion: Expansion | None = None
    try:
        loaded = load_suite(path, overrides)
        expansion = expand(loaded)
        ran |= {each.id for each in CHECKS if each.id != "deep"}
        problems += expansion.unused
    except InvalidSuiteError as error:
        ran |= error.ran
        problems += error.problems
    except SuiteError as error:
        problems.append(Problem(error.message, error.where or str(path), error.hint, check="parse"))
    if deep is not None and expansion is not None:
        problems += _probe(expansion, deep, loaded)
        ran.add("deep")
    results = []
    for each in CHECKS:
        found = tuple(problem for problem in problems if problem.check == each.id)
        if each.id != "deep" or deep is not None:
            results.append(CheckResult(each.id, each.promise, each.id in ran or bool(found), found))
    cells = len(expansion.cells) + expansion.blocked if expansion else 0
    missing = [*expansion.prerequisites, *map(str, missing_data(expansion))] if expansion else []
    return Report(results, missing, cells)


def _probe(expansion: Expansion, deep: Probe, loaded: LoadedSuite) -> list[Problem]:
    """Probes the first cell of each combination of plugins and parameters, whatever its partition and seed."""
    seen: set[str] = set()
    problems = []
    for cell in expansion.cells:
        uses = (cell.dataset, cell.backbone, cell.aggregator, cell.stress)
        key = repr([(use.name, use.params) for use in uses])
        if key in seen:
            continue
        seen.add(key)
        reason = deep(cell)
        if reason is not None:
            combination = " + ".join(use.label for use in uses)
            problems.append(Problem(f"{combination}: {reason}", str(loaded.path), check="deep"))
    return problems
