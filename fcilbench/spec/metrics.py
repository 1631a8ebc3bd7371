"""The metrics of a class-incremental run: one table for all boards, and the functions behind it.

R[t][s] is the accuracy on task s after task t. The functions take this lower-triangular matrix as nested lists: row t
has t + 1 entries in [0, 1]. An entry that was not measured is `None`; a metric that needs it, or that is undefined, is
`None` and never 0.

A new metric is one entry of `METRICS`: rows keep their matrix and their cost, so boards and `fcilbench show` compute it
for old rows too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fcilbench.spec.row import Row

Matrix = Sequence[Sequence[float | None]]
Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Name in rows and on the command line.
        title: Title of its column.
        unit: `ratio` (shown in per cent), `s` or `bytes`.
        better: Which direction is better.
        function: Value from the accuracy matrix and the number of test samples of each task; `None` for a metric of
            the cost, or one that the run records itself.
        board: The board that has a column for it.
        cost: Value from a row's recorded cost; `None` for a metric of the accuracy.
    """

    name: str
    title: str
    unit: str
    better: Better
    function: Callable[[Matrix, Sequence[int]], float | None] | None
    board: Literal["", "accuracy", "overhead"] = ""
    cost: Callable[[Row], float | None] | None = None


def faa(matrix: Matrix) -> float | None:
    """Final averaged accuracy: the mean over tasks of the last row (macro: every task counts the same)."""
    return _mean(matrix[-1])


def accuracy_micro(matrix: Matrix, test_sizes: Sequence[int]) -> float | None:
    """Final per-sample accuracy: the last row weighted by the tasks' numbers of test samples."""
    row = _complete(matrix[-1])
    if row is None:
        return None
    return math.fsum(a * n for a, n in zip(row, test_sizes, strict=True)) / sum(test_sizes)


def average_incremental_accuracy(matrix: Matrix) -> float | None:
    """Mean over t of the mean over tasks s <= t of R[t][s] (macro)."""
    return _mean([_mean(row) for row in matrix])


def forgetting(matrix: Matrix) -> float | None:
    """Mean over s < T-1 of (max over t < T-1 of R[t][s]) minus R[T-1][s]; undefined for one task."""
    return _mean(_losses(matrix))


def forgetting_floored(matrix: Matrix) -> float | None:
    """Forgetting in which the value of each task is at least 0."""
    return _mean([None if loss is None else max(loss, 0.0) for loss in _losses(matrix)])


def forgetting_diagonal(matrix: Matrix) -> float | None:
    """Mean over s < T-1 of R[s][s] minus R[T-1][s]: accuracy right after learning, minus accuracy at the end."""
    last = len(matrix) - 1
    return _mean([_minus(matrix[s][s], matrix[last][s]) for s in range(last)])


def backward_transfer(matrix: Matrix) -> float | None:
    """BWT (Lopez-Paz and Ranzato 2017): mean over s < T-1 of R[T-1][s] minus R[s][s]."""
    value = forgetting_diagonal(matrix)
    return None if value is None else 0.0 - value


def per_round(row: Row, total: float) -> float | None:
    """Returns a total divided by the number of rounds; undefined in rows that did not record it."""
    return total / row.cost.rounds if row.cost.rounds else None


def per_visit(row: Row, total: int) -> float | None:
    """Returns a total of bytes divided by the visits: the clients of each round, summed over all rounds.

    Rows of schema 3 and older did not count them: there it is defined only if every client takes part in every round.
    """
    if row.cost.visits:
        return total / row.cost.visits
    protocol = row.params.protocol
    return per_round(row, total / protocol.get("clients", 1)) if protocol.get("participation", 1.0) == 1 else None


def _since_schema_5(row: Row, size: float) -> float | None:
    """Returns what a client keeps; rows of schema 4 and older did not measure it."""
    return size if row.schema_version >= 5 else None


def _losses(matrix: Matrix) -> list[float | None]:
    last = len(matrix) - 1
    losses: list[float | None] = []
    for s in range(last):
        earlier = _complete([matrix[t][s] for t in range(s, last)])
        losses.append(None if earlier is None else _minus(max(earlier), matrix[last][s]))
    return losses


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _complete(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = _complete(values)
    # Not `sum`, whose last digit depends on the version of Python.
    return math.fsum(known) / len(known) if known else None


def _accuracy(
    name: str, title: str, function: Callable[[Matrix], float | None], better: Better = "higher", shown: bool = False
) -> Metric:
    return Metric(name, title, "ratio", better, lambda matrix, _: function(matrix), "accuracy" if shown else "")


def _cost(name: str, title: str, unit: str, cost: Callable[[Row], float | None]) -> Metric:
    return Metric(name, title, unit, "lower", None, "overhead", cost)


_TABLE = (
    _accuracy("faa", "FAA", faa, shown=True),
    Metric("accuracy_micro", "Accuracy (micro)", "ratio", "higher", accuracy_micro),
    _accuracy("aia", "AIA", average_incremental_accuracy, shown=True),
    _accuracy("forgetting", "Forgetting", forgetting, "lower", shown=True),
    _accuracy("forgetting_floored", "Forgetting (floored)", forgetting_floored, "lower"),
    _accuracy("forgetting_diagonal", "Forgetting (diagonal)", forgetting_diagonal, "lower"),
    _accuracy("bwt", "BWT", backward_transfer),
    Metric("oos_auroc", "OOS AUROC", "ratio", "higher", None, "accuracy"),
    Metric("sharpness", "Sharpness", "nats", "lower", None, "accuracy"),
    Metric("margin", "Margin", "logits", "higher", None, "accuracy"),
    Metric("separation", "Separation", "cosine", "higher", None, "accuracy"),
    _cost("round_s", "Round", "s", lambda row: per_round(row, row.cost.training_s + row.cost.aggregation_s)),
    _cost("task_end_s", "Task end", "s", lambda row: row.cost.task_end_s / row.cost.tasks if row.cost.tasks else None),
    _cost("bytes_up", "Up", "bytes", lambda row: row.cost.bytes_up),
    _cost("bytes_down", "Down", "bytes", lambda row: row.cost.bytes_down),
    _cost("client_up", "Up/visit", "bytes", lambda row: per_visit(row, row.cost.bytes_up)),
    _cost("client_down", "Down/visit", "bytes", lambda row: per_visit(row, row.cost.bytes_down)),
    _cost("module", "Module", "bytes", lambda row: row.cost.module or None),
    _cost("server_state", "Server state", "bytes", lambda row: row.cost.server_state),
    _cost("client_state", "Client state", "bytes", lambda row: _since_schema_5(row, row.cost.client_state)),
    _cost(
        *("client_state_mean", "Client state (mean)", "bytes"),
        lambda row: _since_schema_5(row, row.cost.client_state_mean),
    ),
    _cost("peak_mem", "Peak memory", "bytes", lambda row: row.cost.peak_mem),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
"""Every metric by name. The first one of a board ranks its methods."""


def evaluate(matrix: Matrix, test_sizes: Sequence[int]) -> dict[str, float | None]:
    """Returns every metric of an accuracy matrix by name.

    Example:
        >>> evaluate([[0.9], [0.7, 0.8]], [10, 10])["faa"]
        0.75
    """
    return {name: metric.function(matrix, test_sizes) for name, metric in METRICS.items() if metric.function}
