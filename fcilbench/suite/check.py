"""Checks of a suite: each has an id and a promise, and the report says which of them ran.

The help of `fcilbench check` is generated from `CHECKS`, so that it cannot promise what is not done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from fcilbench.errors import SuiteError
from fcilbench.spec.cell import Cell
from fcilbench.suite.expand import Expansion, expand
from fcilbench.suite.load import load_suite
from fcilbench.suite.yaml import InvalidSuiteError, Problem

Probe = Callable[[Sequence[Cell]], Sequence[str | None]]
"""Runs one tiny forward and aggregate for each cell's plugins; returns what went wrong, or `None`."""

CHECKS = {
    "parse": "YAML 1.2 without duplicate keys; every file that it extends is there",
    "schema": "known keys only, each with a value of the right type and range",
    "plugins": "every plugin and board exists under one unambiguous name",
    "params": "every parameter exists and its value is valid for the plugin or the protocol",
    "tasks": "every split into tasks uses each class of its data set exactly once",
    "rules": "conditions and values of tuned and exclude rules exist, and every rule matches a cell",
    "cells": "labels are unique and no two cells are the same experiment",
    "deep": "one tiny forward and aggregate works for each combination of plugins",
}
"""What each check proves when it finds nothing; `Problem.check` is one of the keys."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found, and whether it ran to its end: it does not if one that it builds on found problems."""

    id: str
    promise: str
    ran: bool
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Report:
    """The result of each check that was asked for, in order, and the cells of the suite: none if it is invalid."""

    results: list[CheckResult]
    expansion: Expansion

    @property
    def problems(self) -> list[Problem]:
        """All problems of all checks."""
        return [problem for result in self.results for problem in result.problems]


def run_checks(path: Path | str, overrides: Sequence[str] = (), deep: Probe | None = None) -> Report:
    """Runs the checks on a suite; writes nothing.

    Args:
        path: The suite's file.
        overrides: Values of `-s`.
        deep: Runs the `deep` check on one cell of each combination of plugins; `None` leaves it out.

    Raises:
        UsageError: If an override is not of the form `path=value`. What is wrong with the suite is in the report.
    """
    checks = CHECKS.keys() if deep else CHECKS.keys() - {"deep"}
    expansion = Expansion("")
    ran: Set[str] = set()
    try:
        expansion = expand(load_suite(path, overrides))
        ran = checks
        broken = probe_combinations(expansion.cells, deep) if deep else {}
        problems = [*expansion.unused, *(_deep_problem(names, reason, path) for reason, names in broken.items())]
    except InvalidSuiteError as error:
        ran, problems = error.ran, [*error.problems]
    except SuiteError as error:
        problems = [Problem(error.message, error.where or str(path), error.hint, check="parse")]
    results = []
    for check in (each for each in CHECKS if each in checks):
        found = tuple(problem for problem in problems if problem.check == check)
        results.append(CheckResult(check, CHECKS[check], check in ran or bool(found), found))
    return Report(results, expansion)


def probe_combinations(cells: Sequence[Cell], probe: Probe) -> dict[str, list[str]]:
    """Probes the first cell of each combination of plugins and parameters, whatever its partition and seed.

    Returns what went wrong, each thing with the combinations that it went wrong for.
    """
    first: dict[str, Cell] = {}
    for cell in cells:
        uses = (cell.dataset, cell.backbone, cell.aggregator, cell.stress)
        first.setdefault(repr([(use.name, use.params) for use in uses]), cell)
    found = defaultdict[str, list[str]](list)
    for cell, reason in zip(first.values(), probe(list(first.values())), strict=True):
        if reason is not None:
            labels = (cell.dataset.label, cell.backbone.label, cell.aggregator.label, cell.stress.label)
            found[reason].append(" + ".join(labels))
    return found


def _deep_problem(names: Sequence[str], reason: str, path: Path | str) -> Problem:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Problem(f"{names[0]}{more}: {reason}", str(path), check="deep")
