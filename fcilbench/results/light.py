"""Metrics computed from a row's accuracy matrices, and rows that take little memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pydantic import BaseModel

from fcilbench.spec.metrics import METRICS
from fcilbench.spec.outcome import Value
from fcilbench.spec.row import Row

_SET = {"value", "unit", "better"}


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


def all_metrics(row: Row) -> dict[str, Value]:
    """Returns the metrics that a row records, then those of a later fcilbench that its matrices give."""
    found = metric_values(row, METRICS)
    return {**row.metrics, **{name: value for name, value in found.items() if name not in row.metrics}}


def lightened(rows: Iterable[Row], metrics: Collection[str]) -> Iterator[Row]:
    """Yields light copies of rows, for `Store.latest_light`; equal parts of them become one object."""
    shared: dict[str, BaseModel] = {}

    def share(part: BaseModel) -> BaseModel:
        return shared.setdefault(f"{type(part).__name__}{part.__dict__}", part)

    for row in rows:
        yield row.model_copy(
            update={
                "plugins": {kind: share(record) for kind, record in row.plugins.items()},
                "params": share(row.params),
                "code": share(row.code),
                "data": share(row.data),
                "metrics": metric_values(row, metrics),
                "accuracy": {},
                "test_sizes": [],
                "classes": [],
            }
        )
