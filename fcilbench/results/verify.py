"""Checks a results folder that somebody submits: what its rows say must follow from what travels with them."""

from __future__ import annotations

from collections.abc import Iterator

from fcilbench.errors import UsageError
from fcilbench.results.provenance import digest, hardware_digest
from fcilbench.results.row import cell_of, metric_values
from fcilbench.results.store import Store, row_of
from fcilbench.spec.identity import IDENTITY_VERSION, cell_id
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.row import Row

_ROUNDING = 1e-9


def verify(store: Store) -> tuple[dict[int, Row], list[tuple[int, str]]]:
    """Checks every row of a folder without training anything.

    A row must fit the schema; its cell id and seeds must follow from its parameters; its environment and resolved
    suite must be there and have the digests that the row names. A result must also have the declared data, an accuracy
    matrix for each task identity that was evaluated, metrics that follow from them, and a curve that has their rows.

    Returns:
        The rows by line of `rows.jsonl`, and the problems with their lines.

    Raises:
        UsageError: If the folder holds no rows.
    """
    if not store.exists():
        raise UsageError(f"{store.root} holds no rows.jsonl", hint="`fcilbench results export` writes such a folder")
    rows: dict[int, Row] = {}
    problems: list[tuple[int, str]] = []
    for line in store.lines():
        number = line.number
        try:
            row = rows[number] = row_of(line)
        except (ValueError, UsageError) as error:
            problems.append((number, f"not a row: {' '.join(str(error).split())[:200]}"))
            continue
        found = [*_identity(row), *_records(store, row)]
        found += [*_result(row), *_curve(store, row)] if row.status == "ok" else []
        problems += [(number, f"cell {row.cell_id[:12]}: {text}") for text in found]
    return rows, problems


def _identity(row: Row) -> Iterator[str]:
    """Yields what of a row's identity does not follow from its parameters."""
    if row.identity_version != IDENTITY_VERSION or row.code.engine_version is None:
        yield f"identity version {row.identity_version}, which this fcilbench ({IDENTITY_VERSION}) cannot compute"
        return
    try:
        cell = cell_of(row)
        expected = cell_id(cell, row.code.engine_version)
    except (ValueError, TypeError) as error:
        yield f"no cell has such parameters: {' '.join(str(error).split())[:200]}"
        return
    if expected != row.cell_id:
        yield f"its parameters are those of cell {expected[:12]}"
    wrong = [role for role, seed in row.seeds.items() if seed != cell.seeds.of(role)]
    if wrong:
        yield f"seeds of {', '.join(wrong)} do not follow from seed {row.seed}"


def _records(store: Store, row: Row) -> Iterator[str]:
    """Yields what is wrong with the environment and the resolved suite that travel with a row."""
    record = store.environment(row.env)
    if record is None or digest(record) != row.env:
        yield f"its environment {row.env[:19]} is {'another' if record else 'missing'}"
    elif hardware_digest(record) != row.hardware_digest:
        yield "its hardware digest is not that of its environment"
    suite = store.suite(row.suite_digest) if row.suite_digest else None
    if suite is None or digest(suite) != row.suite_digest:
        yield f"its resolved suite is {'another' if suite else 'missing'}"


def _result(row: Row) -> Iterator[str]:
    """Yields what contradicts itself in a result."""
    if row.data.declared and row.data.fingerprint != row.data.declared:
        yield f"its data {row.data.fingerprint} are not the declared {row.data.declared}"
    if not row.accuracy or not row.model_digest:
        yield "a result without accuracy matrix or model digest"
    if {*row.accuracy} != {*row.params.evaluate}:
        yield f"it evaluates {', '.join(row.params.evaluate)}, but has matrices of {', '.join(row.accuracy) or 'none'}"
    tasks = len(row.params.tasks) if isinstance(row.params.tasks, list) else row.params.tasks or len(row.classes)
    misshapen = [key for key, matrix in row.accuracy.items() if [*map(len, matrix)] != [*range(1, tasks + 1)]]
    if misshapen or not len(row.test_sizes) == len(row.classes) == tasks:
        wrong = ", ".join(misshapen) or "test_sizes or classes"
        yield f"{wrong} does not fit {tasks} tasks: row t of a matrix has t accuracies"
        return
    function = {name for name, metric in METRICS.items() if metric.function is not None}
    for name, computed in metric_values(row, function).items():
        if name.partition("/")[2] not in row.accuracy:
            yield f"{name} is recorded without an accuracy matrix"
        one, other = row.metrics.get(name, computed).value, computed.value
        if one != other and (one is None or other is None or abs(one - other) > _ROUNDING):
            yield f"{name} is {one}, but {other} by its accuracy matrix"


def _curve(store: Store, row: Row) -> Iterator[str]:
    """Yields what is wrong with the curve of a result."""
    curve = store.curve(row.cell_id)
    if curve is None:
        yield "its curve is missing"
        return
    yield from curve.wrong
    if not all("event" in event for event in curve.events):
        yield f"{curve.where}: an event does not say what it is"
    found = ((event.get("task"), event.get("accuracy")) for event in curve.events if event.get("event") == "task")
    measured = {task: accuracy for task, accuracy in found if isinstance(accuracy, dict)}
    for identity, matrix in row.accuracy.items():
        wrong = [t for t, own in enumerate(matrix) if measured.get(t, {}).get(identity, [None] * len(own)) != own]
        if wrong:
            yield f"its curve has other accuracies under {identity} after task {wrong[0] + 1}"
