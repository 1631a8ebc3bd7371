"""Metrics computed from a row's accuracy matrices, and rows that take little memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from pydantic import BaseModel

from fcilbench.spec.metrics import METRICS
from fcilbench.spec.outcome import Value
from fcilbench.spec.row import Row

_SET = {"value", "unit", "better"}
_M = TypeVar("_M", bound=BaseModel)


def metric_values(row: Row, names: Collection[str]) -> dict[str, Value]:
    """Returns the named metrics of a row, by `<metric>/<task identity>`.

    A metric is computed from the accuracy matrix where that is possible, so that old rows have new metrics; elsewhere
    the recorded value counts. Names that are not in `METRICS` are ignored.
    """
    found: dict[str, Value] = {}
    for name in names:
        metric = METRICS.get(name)
        if metric is None:
            continue
        for identity in ("none", "inferred", "oracle"):
            key = f"{name}/{identity}"
            matrix = row.accuracy.get(identity)
            if matrix and metric.function is not None:
                value = metric.function(matrix, row.test_sizes)
                # Without validation, which would be slow for the thousands of rows of a board.
                found[key] = Value.model_construct(_SET, value=value, unit=metric.unit, better=metric.better)
            elif key in row.metrics:
                found[key] = row.metrics[key]
    return found


class Lightener:
    """Makes the rows of `Store.latest_light`; equal parts of them become one object."""

    def __init__(self, metrics: Collection[str]) -> None:
        self._metrics = metrics
        self._shared: dict[str, BaseModel] = {}

    def __call__(self, row: Row) -> Row:
        """Returns a light copy of a row."""
        return row.model_copy(
            update={
                "plugins": {kind: self._share(record) for kind, record in row.plugins.items()},
                "params": self._share(row.params),
                "code": self._share(row.code),
                "data": self._share(row.data),
                "metrics": metric_values(row, self._metrics),
                "accuracy": {},
                "test_sizes": [],
                "classes": [],
            }
        )

    def _share(self, part: _M) -> _M:
        return self._shared.setdefault(f"{type(part).__name__}{part.__dict__}", part)  # type: ignore[return-value]
