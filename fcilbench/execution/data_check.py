"""Holds rows against the data sets of this machine: their content, and the classes and test samples of each task."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping

from fcilbench.escape import line
from fcilbench.execution.probe import Draw, draw_tasks
from fcilbench.spec.row import Row


def data_problems(rows: Mapping[int, Row], say: Callable[[str], None]) -> list[tuple[int, str]]:
    """Returns the rows whose data, classes or test samples are not those that this machine has.

    Args:
        rows: Rows by their line.
        say: Is told the data that are not here, which are not compared.
    """
    lines: dict[str, list[int]] = defaultdict(list)
    for number, row in rows.items():
        if row.data.fingerprint is not None and "dataset" in row.plugins:
            lines[json.dumps([row.plugins["dataset"].name, row.params.dataset])].append(number)
    problems = []
    for use, numbers in lines.items():
        name, params = json.loads(use)
        draws = {number: drawn for number in numbers if (drawn := _draw(rows[number])) is not None}
        reason, digest, answers = draw_tasks(name, params, [*draws.values()])
        if reason:
            say(f"the data of {len(numbers)} rows are not compared: {line(name)}: {reason}")
            continue
        tasks = dict(zip(draws, answers, strict=True))
        for number in numbers:
            row, found = rows[number], []
            if row.data.fingerprint != digest:
                found = [f"other data of {line(name)} than here ({digest})"]
            elif row.status == "ok" and (own := tasks.get(number)) is not None:
                if row.classes != own.classes:
                    found.append("classes are not those that its order seed draws")
                elif row.test_sizes != own.test_sizes:
                    shown = ", ".join(map(str, own.test_sizes[:10]))
                    found.append(f"test_sizes are not those of its data here: {shown}")
            problems += [(number, f"cell {row.cell_id[:12]}: {text}") for text in found]
    return problems


def _draw(row: Row) -> Draw | None:
    """Returns what decides the classes and test samples of a row's tasks; `None` if the row does not say."""
    tasks, validation = row.params.tasks, row.params.protocol.get("validation", 0.0)
    if not isinstance(tasks, list) or not isinstance(validation, float) or {"order", "partition"} - {*row.seeds}:
        return None
    return Draw(tuple(tasks), row.seeds["order"], row.seeds["partition"], validation)
