"""What disagrees between two results of one cell."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.results.store import Store
from fcilbench.spec.outcome import Value
from fcilbench.spec.row import Row

DEFAULT_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Difference:
    """One metric on which two rows of a cell disagree; `None` is undefined, or absent on that side."""

    metric: str
    kept: float | None
    other: float | None
    tolerance: float


@dataclass(frozen=True)
class Conflict:
    """Two results of one cell that differ beyond the tolerance.

    Attributes:
        cell_id: The cell.
        coords: Its place on the grid.
        kept_from: Folder of the row that counts.
        other_from: Folder of the other row.
        metrics: Where they differ.
        kept_env: Environment digest of the row that counts.
        other_env: Environment digest of the other row.
        environment: Dotted environment keys that differ, with both values (`None`: absent).
    """

    cell_id: str
    coords: Mapping[str, str | int]
    kept_from: Path
    other_from: Path
    metrics: tuple[Difference, ...]
    kept_env: str
    other_env: str
    environment: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Candidate:
    """The row of a cell in one of the folders."""

    row: Row
    store: Store


def compare(
    kept: Mapping[str, Value], other: Mapping[str, Value], tolerance: Mapping[str, float]
) -> tuple[Difference, ...]:
    """Returns the metrics on which two results differ beyond the tolerance.

    Example:
        `compare({"faa/none": Value(value=0.50)}, {"faa/none": Value(value=0.52)}, {"faa/*": 0.03})` is empty.
    """
    found = []
    for name in sorted({*kept, *other}):
        limit = next((value for pattern, value in tolerance.items() if fnmatch.fnmatchcase(name, pattern)), None)
        limit = DEFAULT_TOLERANCE if limit is None else limit
        a, b = (side[name].value if name in side else None for side in (kept, other))
        one_sided = (name in kept) != (name in other) or (a is None) != (b is None)
        if one_sided or (a is not None and b is not None and abs(a - b) > limit):
            found.append(Difference(name, a, b, limit))
    return tuple(found)


def conflicts_of(ranked: Sequence[Candidate], tolerance: Mapping[str, float]) -> list[Conflict]:
    """Returns what disagrees with the first of a cell's rows.

    Args:
        ranked: The cell's rows, the one that counts first, results before rows without one.
        tolerance: Largest absolute difference by metric name or pattern.
    """
    kept = ranked[0]
    conflicts = []
    for other in ranked[1:]:
        if other.row.status != "ok":  # then so are all that follow, and a missing result contradicts none
            break
        differences = compare(kept.row.metrics, other.row.metrics, tolerance)
        if differences:
            conflicts.append(
                Conflict(
                    cell_id=kept.row.cell_id,
                    coords=kept.row.coords,
                    kept_from=kept.store.root,
                    other_from=other.store.root,
                    metrics=differences,
                    kept_env=kept.row.env,
                    other_env=other.row.env,
                    environment=_environment_difference(kept, other),
                )
            )
    return conflicts


def _environment_difference(kept: Candidate, other: Candidate) -> dict[str, tuple[Any, Any]]:
    a, b = (_flat(item.store.environment(item.row.env) or {}) for item in (kept, other))
    return {key: (a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)}


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
