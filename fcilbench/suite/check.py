"""Checks of a suite: each has an id and a promise, and the report says which of them ran and what is missing here.

The help of `fcilbench check` is generated from `CHECKS`, so that it cannot promise what is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.data.root import data_root, find_layout
from fcilbench.errors import SuiteError
from fcilbench.spec.cell import Cell
from fcilbench.suite.expand import Expansion, expand
from fcilbench.suite.load import LoadedSuite, load_suite
from fcilbench.suite.problems import InvalidSuiteError, Problem

Probe = Callable[[Cell], str | None]
"""Runs one tiny forward and aggregate for a cell's plugins; returns what went wrong, or `None`."""

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
        ran |= CHECKS.keys() - {"deep"}
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
    for check, promise in CHECKS.items():
        found = tuple(problem for problem in problems if problem.check == check)
        if check != "deep" or deep is not None:
            results.append(CheckResult(check, promise, check in ran or bool(found), found))
    cells = len(expansion.cells) + expansion.blocked if expansion else 0
    missing = [*expansion.prerequisites, *map(str, missing_data(expansion))] if expansion else []
    return Report(results, missing, cells)


def _probe(expansion: Expansion, deep: Probe, loaded: LoadedSuite) -> list[Problem]:
    """Probes the first cell of each combination of plugins and parameters, whatever its partition and seed."""
    first: dict[str, Cell] = {}
    for cell in expansion.cells:
        uses = (cell.dataset, cell.backbone, cell.aggregator, cell.stress)
        first.setdefault(repr([(use.name, use.params) for use in uses]), cell)
    problems = []
    for cell in first.values():
        reason = deep(cell)
        if reason is not None:
            labels = (cell.dataset.label, cell.backbone.label, cell.aggregator.label, cell.stress.label)
            problems.append(Problem(f"{' + '.join(labels)}: {reason}", str(loaded.path), check="deep"))
    return problems


@dataclass(frozen=True)
class Missing:
    """A data set whose files are not under the data root: its plugin, the download's size if known, how to get it."""

    name: str
    bytes: int | None
    how: str

    def __str__(self) -> str:
        size = "" if self.bytes is None else f", {self.bytes / 1e9:.2f} GB to download"
        return f"data set {self.name}{size}: {self.how}"


def missing_data(expansion: Expansion, root: Path | None = None) -> list[Missing]:
    """Returns the data sets of a suite that are not under the data root; looks at names, `data verify` at content."""
    found = []
    for key, facts in sorted(expansion.facts.items()):
        layouts = facts.get("layouts") or []
        if key.startswith("dataset:") and layouts and find_layout(layouts, data_root(root)) is None:
            found.append(_missing(facts["plugin"], facts))
    return list(dict.fromkeys(found))


def download_bytes(missing: list[Missing]) -> int | None:
    """Returns the bytes to download for all of them; `None` if the size of one is not known."""
    sizes = [each.bytes for each in missing]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _missing(name: str, facts: dict[str, Any]) -> Missing:
    archives = facts.get("archives") or []
    sizes = [archive["size"] for archive in archives]
    known = bool(sizes) and None not in sizes
    fetchable = bool(archives) and all(archive["url"] for archive in archives)
    how = f"fcilbench data fetch {name}" if fetchable else f"put it there by hand, from {facts.get('homepage', '')}"
    return Missing(name, sum(sizes) if known else None, how)
