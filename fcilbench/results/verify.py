"""Checks a results folder that somebody submits: what its rows say must follow from what travels with them.

Whatever a folder holds is somebody else's: a check tells types before it uses values, and none of them raises.
`docs/trust.md` says what is checked, and what cannot be known without training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fcilbench.errors import UsageError
from fcilbench.registry import catalog
from fcilbench.results.check_curve import curve_problems
from fcilbench.results.check_plugins import Plugins
from fcilbench.results.check_result import result_problems
from fcilbench.results.check_row import (
    environment_problems,
    form_problems,
    identity_problems,
    lacking,
    status_problems,
    time_problems,
)
from fcilbench.results.check_suite import read_suite, suite_problems, written_options
from fcilbench.results.compare import compare
from fcilbench.results.records import reason
from fcilbench.results.store import Store, row_of
from fcilbench.spec.row import Row
from fcilbench.suite.schema import Suite


@dataclass
class Verdict:
    """What was found in a folder.

    Attributes:
        rows: The rows by line of `rows.jsonl`.
        problems: What is wrong, each with its line.
        notes: What could not be checked on this machine.
    """

    rows: dict[int, Row] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(store: Store) -> Verdict:
    """Checks every row of a folder without training anything.

    A row must fit the schema; its cell id and seeds must follow from its parameters, and these from its resolved suite;
    its environment and suite must be there and have the digests that the row names. A result must also have the
    declared data, accuracies of whole test samples, metrics that follow from them, and a curve that has every round of
    it and adds up to its costs. Two results of one cell must not differ.

    Raises:
        UsageError: If the folder holds no rows.
    """
    if not store.exists() or not any(True for _ in store.lines()):
        raise UsageError(f"{store.root} holds no rows", hint="`fcilbench results export` writes such a folder")
    verdict = Verdict()
    for line in store.lines():
        try:
            verdict.rows[line.number] = row_of(line)
        except (ValueError, UsageError) as error:
            verdict.problems.append((line.number, f"not a row: {reason(error)}"))
    with catalog.session():  # one process answers for the plugins
        folder = _Folder(store, Plugins(verdict.rows.values()))
        for number, row in verdict.rows.items():
            found: list[str] = []
            try:
                found += folder.problems(row)
            except Exception as error:  # one row that nobody thought of must not hide what is wrong with the others
                found.append(f"cannot be checked: {type(error).__name__}: {reason(error)}")
            verdict.problems += [(number, f"cell {row.cell_id[:12]}: {text}") for text in found]
    verdict.problems = sorted([*verdict.problems, *_repeated(verdict.rows)], key=lambda each: each[0])
    verdict.notes = folder.plugins.notes
    return verdict


class _Folder:
    """What travels with the rows of a folder, read once."""

    def __init__(self, store: Store, plugins: Plugins) -> None:
        self._store, self.plugins = store, plugins
        self._environments: dict[str, Mapping[str, Any] | None] = {}
        self._suites: dict[str, Suite | str] = {}

    def problems(self, row: Row) -> Iterator[str]:
        """Yields what is wrong with a row."""
        if lacks := lacking(row):
            yield lacks
            return
        yield from identity_problems(row)
        yield from form_problems(row)
        yield from time_problems(row)
        yield from status_problems(row)
        yield from self._records(row)
        yield from self.plugins.problems(row)
        if row.status == "ok":
            yield from result_problems(row)
            curve = self._store.curve(row.cell_id)
            yield from curve.wrong if curve else ()
            yield from curve_problems(row, curve.events if curve else [], self.plugins.method(row))

    def _records(self, row: Row) -> Iterator[str]:
        """Yields what is wrong with the environment and the resolved suite that travel with a row."""
        if row.env not in self._environments:
            self._environments[row.env] = self._store.environment(row.env)
        yield from environment_problems(row, self._environments[row.env], row.env[:19])
        name = row.suite_digest or ""
        if name not in self._suites:
            self._suites[name] = read_suite(self._store.suite(name) if name else None, row.suite_digest)
        suite = self._suites[name]
        if isinstance(suite, str):
            yield suite
            return
        wrong = list(suite_problems(row, suite))
        yield from wrong or self.plugins.by_suite(row, written_options(row, suite))


def _repeated(rows: Mapping[int, Row]) -> Iterator[tuple[int, str]]:
    """Yields the rows that repeat an earlier one, and results of one cell that differ."""
    earlier: dict[str, list[tuple[int, Row]]] = defaultdict(list)
    for number, row in rows.items():
        for before, other in earlier[row.cell_id]:
            if other.digest == row.digest:
                yield number, f"cell {row.cell_id[:12]}: it repeats line {before}"
                break
            if other.status == row.status == "ok" and (found := _difference(other, row)):
                yield number, f"cell {row.cell_id[:12]}: another result than line {before}: {found}"
                break
        earlier[row.cell_id].append((number, row))


def _difference(one: Row, other: Row) -> str:
    """Returns what differs between two results of one cell, in a few words; empty if nothing does."""
    try:
        found = compare(one, other)
    except (ValueError, TypeError, ArithmeticError, LookupError):  # what is wrong with them is said elsewhere
        return "they cannot be compared"
    names = [*(each.metric for each in found.differences), *(f"digest of the {name}" for name in found.digests)]
    return ", ".join(names[:3])
