"""What differs between two results of one cell: metrics, matrices, bytes and counts, digests of model and data."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fcilbench.results.agreement import EQUAL, Expectation
from fcilbench.results.row import all_metrics
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.outcome import SelectorCost
from fcilbench.spec.row import Row
from fcilbench.tables import flatten

DEFAULT_TOLERANCE = 1e-9
_EXACT: Mapping[str, int] = {"bytes_up": 1, "bytes_down": 1, "rounds": 3, "visits": 4, "tasks": 3}
"""Costs that follow from the cell alone, each with the first schema of rows that record it."""
_OF_MODEL: Mapping[str, int] = {"module": 3, "server_state": 1, "client_state": 5, "client_state_mean": 5}
"""Costs that follow from the cell and the model: a method may pack zeros, or keep as many directions as matter."""
_OTHER_MODEL = 0.1
"""How much costs of the model may differ where the model does, as a share of the larger one."""


@dataclass(frozen=True)
class Difference:
    """A number of two results; `None` means undefined or absent.

    Attributes:
        metric: Name of the metric, `cost/<name>`, or `accuracy/<task identity>[t][s]` (after task t, on task s, from
            0).
        tolerance: The largest difference that counts as equal; `None` if it is not judged.
    """

    metric: str
    kept: float | None
    other: float | None
    tolerance: float | None

    @property
    def within(self) -> bool:
        """Whether the values agree within the tolerance; undefined agrees only with undefined."""
        if self.tolerance is None:
            return True
        if self.kept is None or self.other is None:
            return self.kept is None and self.other is None
        return abs(self.kept - self.other) <= self.tolerance


@dataclass(frozen=True)
class Comparison:
    """Two results of one cell.

    Attributes:
        pairs: Every number of them: metrics first, then costs and entries of the accuracy matrices.
        digests: The digests that differ, of `model` and `data`.
        expectation: The agreement that they are held to.
    """

    pairs: tuple[Difference, ...]
    digests: Mapping[str, tuple[str | None, str | None]]
    expectation: Expectation

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The numbers that differ by more than their tolerance."""
        return tuple(each for each in self.pairs if not each.within)

    @property
    def equal(self) -> bool:
        """Whether every number and every digest is equal."""
        return not self.digests and all(each.kept == each.other for each in self.pairs)

    @property
    def conflicting(self) -> bool:
        """Whether one of the results must be wrong; another environment may well give another model."""
        return bool(self.differences) or "data" in self.digests or (bool(self.digests) and self.expectation.exact)


def compare(
    kept: Row, other: Row, expectation: Expectation = EQUAL, given: Mapping[str, float] | None = None
) -> Comparison:
    """Compares two results of one cell.

    A metric that no matrix gives, e.g. the sharpness, is compared where both results have it. Costs must be equal
    whatever the tolerance is, those of the model where the model is, or should be.

    Args:
        kept: The result that is published, or counts.
        other: The other one.
        expectation: The agreement that they are held to, see `fcilbench.results.agreement.expected`.
        given: Other largest differences by metric name or pattern (`faa/*`, `accuracy/*`). The first pattern that fits
            counts, then those of the expectation, then `DEFAULT_TOLERANCE`.
    """
    given = given or {}
    tolerance = {**given, **{pattern: own for pattern, own in expectation.tolerance.items() if pattern not in given}}
    derived = {name for name, metric in METRICS.items() if metric.function is not None}
    common, recorded = kept.metrics.keys() & other.metrics.keys(), kept.metrics.keys() | other.metrics.keys()
    names = common | {name for name in recorded if name.partition("/")[0] in derived}
    metrics = [{name: each.value for name, each in all_metrics(row).items() if name in names} for row in (kept, other)]
    pairs = _costs(kept, other, expectation)
    for a, b in (metrics, [_entries(kept), _entries(other)]):
        for name in sorted({*a, *b}):
            fitting = (value for pattern, value in tolerance.items() if fnmatch.fnmatchcase(name, pattern))
            pairs.append(Difference(name, a.get(name), b.get(name), next(fitting, DEFAULT_TOLERANCE)))
    pairs.sort(key=lambda each: (each.metric.startswith("accuracy/"), each.metric.startswith("cost/")))
    digests = {
        "model": (kept.model_digest, other.model_digest),
        "data": (kept.data.fingerprint, other.data.fingerprint),
    }
    differing = {name: pair for name, pair in digests.items() if pair[0] != pair[1]}
    return Comparison(tuple(pairs), differing, expectation)


def environment_difference(kept: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the dotted keys at which two environment records differ, with both values (`None` if absent)."""
    a, b = flatten(kept), flatten(other)
    return {key: (a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)}


def _costs(kept: Row, other: Row, expectation: Expectation) -> list[Difference]:
    """Returns the costs that training again must repeat, of those that both rows know."""
    schema = min(kept.schema_version, other.schema_version)
    alike = expectation.exact or kept.model_digest == other.model_digest
    found = []
    for name, since in {**_EXACT, **_OF_MODEL}.items():
        if schema >= since:
            one, two = getattr(kept.cost, name), getattr(other.cost, name)
            loose = name in _OF_MODEL and not alike
            found.append(Difference(f"cost/{name}", one, two, _OTHER_MODEL * max(one, two) if loose else 0.0))
    for label in sorted({*kept.cost.selectors, *other.cost.selectors}):
        bills = [row.cost.selectors.get(label) for row in (kept, other)]
        for name in SelectorCost.model_fields:
            one, two = (None if bill is None else getattr(bill, name) for bill in bills)
            found.append(Difference(f"cost/selectors.{label}.{name}", one, two, 0.0))
    return found


def _entries(row: Row) -> dict[str, float | None]:
    return {
        f"accuracy/{identity}[{t}][{s}]": value
        for identity, matrix in row.accuracy.items()
        for t, line in enumerate(matrix)
        for s, value in enumerate(line)
    }
