"""A results folder as pandas tables, for notebooks and for export."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fcilbench.escape import escape_csv
from fcilbench.files import replacing
from fcilbench.results.private import hidden
from fcilbench.results.row import all_metrics
from fcilbench.results.store import NoRowsError, Store
from fcilbench.spec.row import Row
from fcilbench.tables import flatten

if TYPE_CHECKING:
    import pandas

SUFFIXES = (".csv", ".parquet")
"""Files that a table can be written to."""


class Frames(NamedTuple):
    """The tables of a results folder, as `fcilbench.load` describes them."""

    rows: pandas.DataFrame
    curves: pandas.DataFrame
    matrices: pandas.DataFrame


def load(folder: Path | str) -> Frames:
    """Does what `fcilbench.load` says, without importing pandas with the package."""
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
    return Frames(*map(pandas.DataFrame, ([_record(row) for row in rows], curves, matrices)))


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Writes a line for each row, without home directories, to a file with one of `SUFFIXES`.

    In CSV a text that a spreadsheet would compute gets an apostrophe in front, see `fcilbench.escape.escape_csv`.
    """
    import pandas

    frame = pandas.DataFrame([_record(hidden(row)) for row in rows])
    if path.suffix == ".csv":
        texts = frame.rename(columns=escape_csv).map(
            lambda value: escape_csv(value) if isinstance(value, str) else value
        )
        with replacing(path) as file:
            texts.to_csv(file, index=False)
    else:
        mixed = [name for name, column in frame.items() if column.map(type).nunique() > 1 and column.dtype == object]
        with replacing(path) as file:
            frame.astype(dict.fromkeys(mixed, "string")).to_parquet(file, index=False)


def _record(row: Row) -> dict[str, Any]:
    """Returns a row as a flat record; lists become texts."""
    params = flatten(row.params.model_dump(mode="json"), "params")
    return {
        "cell_id": row.cell_id,
        "suite": row.suite,
        **row.coords,
        "status": row.status,
        **{name: value.value for name, value in sorted(all_metrics(row).items())},
        **{f"cost.{name}": value for name, value in row.cost.figures.items()},
        **{name: str(value) if isinstance(value, list | dict) else value for name, value in params.items()},
        "device": row.device,
        "env": row.env,
        "hardware_digest": row.hardware_digest,
        "engine_version": row.code.engine_version,
        "code_digest": row.code.digest,
        "started": row.started.isoformat(),
    }
