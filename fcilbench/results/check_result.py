"""What a result says: accuracies of whole samples, metrics that follow from them, tests of every class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fcilbench.escape import line
from fcilbench.results.row import metric_values
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.row import Row
from fcilbench.tables import cut

_ROUNDING = 1e-9
_WHOLE = 1e-6
"""How far an accuracy times a number of samples may be from a whole number, by rounding."""


def tasks_of(row: Row) -> int:
    """Returns the number of tasks that a row's parameters ask for; those of its classes if they do not say."""
    tasks = row.params.tasks
    return len(tasks) if isinstance(tasks, list) else tasks or len(row.classes)


def result_problems(row: Row) -> Iterator[str]:
    """Yields what contradicts itself in a result."""
    if row.data.declared and row.data.fingerprint != row.data.declared:
        yield f"its data {row.data.fingerprint} are not the declared {row.data.declared}"
    if {*row.accuracy} != {*row.params.evaluate}:
        yield f"it evaluates {', '.join(row.params.evaluate)}, but has matrices of {', '.join(row.accuracy) or 'none'}"
    if not {*row.cost.selectors} <= {*row.selectors}:
        yield f"cost: selectors are {cut(line(', '.join(row.cost.selectors)), 60)}, not those that it is scored under"
    if row.schema_version >= 3 and not row.cost.module:
        yield "cost: module is 0, but a result deploys a model"
    tasks = tasks_of(row)
    misshapen = [key for key, matrix in row.accuracy.items() if [*map(len, matrix)] != [*range(1, tasks + 1)]]
    if misshapen or not len(row.test_sizes) == len(row.classes) == tasks:
        wrong = ", ".join(misshapen) or "test_sizes or classes"
        yield f"{wrong} does not fit {tasks} tasks: row t of a matrix has t accuracies"
        return
    sizes = [*_class_problems(row)]
    yield from sizes
    found = [*_accuracy_problems(row)]
    yield from found
    yield from _metric_problems(row, derived=not (sizes or found))


def _class_problems(row: Row) -> Iterator[str]:
    """Yields tasks without classes or test samples, and classes that are not those of one split."""
    names = [name for own in row.classes for name in own]
    if len({*names}) != len(names):
        yield "classes: a class has its name twice"
    sizes = [*map(len, row.classes)]
    wanted = row.params.tasks if isinstance(row.params.tasks, list) else [len(names) // len(sizes)] * len(sizes)
    if sizes != wanted or 0 in sizes:
        yield f"classes: tasks hold {_listed(sizes)} classes, its parameters ask for {_listed(wanted)}"
    for task, (size, own) in enumerate(zip(row.test_sizes, row.classes, strict=True), start=1):
        most = row.params.dataset.get("test_per_class")
        if size < 1 or (type(most) is int and not row.params.protocol.get("validation") and size > most * len(own)):
            limit = f" of at most {most} each" if type(most) is int else ""
            yield f"test_sizes: task {task} has {size} test samples of {len(own)} classes{limit}"


def _listed(sizes: Sequence[int]) -> str:
    return cut(", ".join(map(str, sizes)), 60)


def _accuracy_problems(row: Row) -> Iterator[str]:
    """Yields entries that are no share of a task's test samples, and tasks that were measured in part."""
    measured = {key: [None not in own for own in matrix] for key, matrix in row.accuracy.items()}
    for key, matrix in row.accuracy.items():
        for t, own in enumerate(matrix):
            for s, (value, size) in enumerate(zip(own, row.test_sizes, strict=False)):
                where = f"accuracy/{key}[{t}][{s}]"
                if value is None:
                    if any(other is not None for other in own):
                        yield f"{where} is not measured, but others after task {t + 1} are"
                elif not 0.0 <= value <= 1.0:
                    yield f"{where} is {value:g}, not between 0 and 1"
                elif size > 0 and abs(value * size - round(value * size)) > _WHOLE:
                    yield f"{where} is {value:g}, {value * size:g} of {size} test samples: not a whole number"
    if len({*map(tuple, measured.values())}) > 1 or not all(own[-1] for own in measured.values()):
        yield "accuracy: task identities are measured together, and always after the last task"


def _metric_problems(row: Row, derived: bool) -> Iterator[str]:
    """Yields metrics that do not follow from the matrices, if they can be `derived`, or that cannot be."""
    for name, value in row.metrics.items():
        metric = METRICS.get(name.partition("/")[0])
        if metric is None or name.count("/") != 1:
            yield f"{cut(line(name), 60)!r} is no metric"
        elif (value.unit, value.better) != (metric.unit, metric.better):
            yield f"{name} is in {cut(line(value.unit), 20)}, {value.better} is better; it is in {metric.unit}, " + (
                f"{metric.better} is better"
            )
        elif metric.name == "oos_auroc" and value.value is not None and not 0.0 <= value.value <= 1.0:
            yield f"{name} is {value.value:g}, not between 0 and 1"
    function = {name for name, metric in METRICS.items() if metric.function is not None}
    recorded = [name for name in row.metrics if name.partition("/")[0] in function]
    for name in recorded:
        if name.partition("/")[2] not in row.accuracy:
            yield f"{cut(line(name), 60)} is recorded without an accuracy matrix"
    for name, computed in metric_values(row, function).items() if derived else ():
        one, other = row.metrics.get(name, computed).value, computed.value
        if one != other and (one is None or other is None or abs(one - other) > _ROUNDING):
            yield f"{name} is {one}, but {other} by its accuracy matrix"
