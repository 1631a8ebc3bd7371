"""What differs between two results of one cell: metrics, accuracy matrices, and digests of model and data."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fcilbench.results.row import all_metrics
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.row import Row
from fcilbench.tables import flatten

DEFAULT_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Difference:
    """A number of two results; `None` means undefined or absent.

    Attributes:
        metric: Name of the metric, or `accuracy/<task identity>[t][s]` (after task t, on task s, from 0).
    """

    metric: str
    kept: float | None
    other: float | None
    tolerance: float

    @property
    def within(self) -> bool:
        """Whether the values agree within the tolerance; undefined agrees only with undefined."""
        if self.kept is None or self.other is None:
            return self.kept is None and self.other is None
        return abs(self.kept - self.other) <= self.tolerance


@dataclass(frozen=True)
class Comparison:
    """What differs between two results: numbers beyond their tolerance, and digests (`model`, `data`).

    `same_origin` is true if environment, device, commit, engine version and plugin code are known to be equal; then the
    digests should be equal, too.
    """

    differences: tuple[Difference, ...]
    digests: Mapping[str, tuple[str | None, str | None]]
    same_origin: bool

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences and not self.digests

    @property
    def conflicting(self) -> bool:
        """Whether one of the results must be wrong; another environment may well give another model."""
        return bool(self.differences) or "data" in self.digests or (bool(self.digests) and self.same_origin)


def compare(kept: Row, other: Row, tolerance: Mapping[str, float]) -> Comparison:
    """Compares two results of one cell.

    `tolerance` is the largest difference by metric name or pattern (`faa/*`, `accuracy/*`). The first pattern that fits
    counts; without one, `DEFAULT_TOLERANCE`.
    """
    digests = {
        "model": (kept.model_digest, other.model_digest),
        "data": (kept.data.fingerprint, other.data.fingerprint),
    }
    return Comparison(
        differences=tuple(each for each in pair_up(kept, other, tolerance) if not each.within),
        digests={name: pair for name, pair in digests.items() if pair[0] != pair[1]},
        same_origin=_origin(kept) == _origin(other) and not (kept.code.dirty or other.code.dirty),
    )


def pair_up(kept: Row, other: Row, tolerance: Mapping[str, float]) -> list[Difference]:
    """Returns the numbers of two results in pairs: metrics first, then entries of the accuracy matrices.

    A metric that no matrix gives, e.g. the sharpness, is compared where both results have it.
    """
    derived = {name for name, metric in METRICS.items() if metric.function is not None}
    found_in_both = kept.metrics.keys() & other.metrics.keys()
    recorded = {n for n in {*kept.metrics, *other.metrics} if n in found_in_both or n.partition("/")[0] in derived}
    metrics = [
        {name: value.value for name, value in all_metrics(row).items() if name in recorded} for row in (kept, other)
    ]
    found = []
    for a, b in (metrics, [_entries(kept), _entries(other)]):
        for name in sorted({*a, *b}):
            fitting = (value for pattern, value in tolerance.items() if fnmatch.fnmatchcase(name, pattern))
            found.append(Difference(name, a.get(name), b.get(name), next(fitting, DEFAULT_TOLERANCE)))
    return found


def environment_difference(kept: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the dotted keys at which two environment records differ, with both values (`None` if absent)."""
    a, b = flatten(kept), flatten(other)
    return {key: (a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)}


def _entries(row: Row) -> dict[str, float | None]:
    return {
        f"accuracy/{identity}[{t}][{s}]": value
        for identity, matrix in row.accuracy.items()
        for t, line in enumerate(matrix)
        for s, value in enumerate(line)
    }


def _origin(row: Row) -> tuple[object, ...]:
    return row.env, row.code.digest, row.code.engine_version, row.code.git_sha, row.device
