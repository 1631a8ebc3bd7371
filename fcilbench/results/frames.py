"""A results folder as pandas tables, for notebooks and for export."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fcilbench.errors import UsageError
from fcilbench.results.row import all_metrics
from fcilbench.results.store import NoRowsError, Store
from fcilbench.spec.row import Row
from fcilbench.tables import flatten

if TYPE_CHECKING:
    import pandas

SUFFIXES = (".csv", ".parquet")
"""Files that a table can be written to."""


class Frames(NamedTuple):
    """The tables of a results folder; `cell_id` joins them.

    Attributes:
        rows: A line for each cell: coordinates, status, metrics by `<metric>/<task identity>`, cost, parameters.
        curves: A line for each round and each end of a task: loss, seconds, bytes, diagnostics; where it was measured,
            the accuracy on each task seen after a round.
        matrices: A line for each entry of an accuracy matrix: task identity, `after` task t, on `task` s, accuracy.
    """

    rows: pandas.DataFrame
    curves: pandas.DataFrame
    matrices: pandas.DataFrame


def load(folder: Path | str = "results") -> Frames:
    """Returns the last row of each cell of a results folder, with curves and matrices, as pandas tables.

    Raises:
        NoRowsError: If the folder holds no rows.

    Example:
        >>> fcilbench.load("results").rows.groupby("aggregator")["faa/none"].mean()  # doctest: +SKIP
    """
    import pandas

    store = Store(folder)
    rows = list(store.latest().values())
    if not rows:
        raise NoRowsError(store.root)
    curves = [
        {"cell_id": row.cell_id, **flatten({k: v for k, v in event.items() if k != "accuracy" or "round" in event})}
        for row in rows
        for event in store.rounds(row.cell_id)
    ]
    matrices = [
        {"cell_id": row.cell_id, "identity": identity, "after": after, "task": task, "accuracy": value}
        for row in rows
        for identity, matrix in row.accuracy.items()
        for after, line in enumerate(matrix)
        for task, value in enumerate(line)
    ]
    return Frames(rows_frame(rows), pandas.DataFrame(curves), pandas.DataFrame(matrices))


def rows_frame(rows: Iterable[Row]) -> pandas.DataFrame:
    """Returns a table with a line for each row."""
    import pandas

    return pandas.DataFrame([_record(row) for row in rows])


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Writes a line for each row to a `.csv` or `.parquet` file.

    Raises:
        UsageError: If the file has another ending.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path}: no table of rows is written to {path.suffix} files", hint="end the name in .csv or .parquet"
        )
    frame = rows_frame(rows)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        mixed = [name for name, column in frame.items() if column.map(type).nunique() > 1 and column.dtype == object]
        frame.astype(dict.fromkeys(mixed, "string")).to_parquet(path, index=False)


def _record(row: Row) -> dict[str, Any]:
    """Returns a row as a flat record; lists become texts."""
    params = flatten(row.params.model_dump(mode="json"), "params")
    return {
        "cell_id": row.cell_id,
        "suite": row.suite,
        **row.coords,
        "status": row.status,
        **{name: value.value for name, value in sorted(all_metrics(row).items())},
        **{f"cost.{name}": value for name, value in row.cost.model_dump().items()},
        **{name: str(value) if isinstance(value, list | dict) else value for name, value in params.items()},
        "device": row.device,
        "env": row.env,
        "hardware_digest": row.hardware_digest,
        "engine_version": row.code.engine_version,
        "code_digest": row.code.digest,
        "started": row.started.isoformat(),
    }
