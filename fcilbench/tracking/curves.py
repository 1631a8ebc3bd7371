"""Turns a cell's records into what trackers take: flat parameters and curve points."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fcilbench.spec.cell import PLUGIN_KINDS
from fcilbench.spec.row import Row
from fcilbench.tables import flatten

_COORDINATES = ("event", "task", "tasks", "round", "rounds")


class Point(NamedTuple):
    """One value of a curve at a step (counted from 1)."""

    name: str
    value: float
    step: int


def flat_params(row: Row) -> dict[str, str]:
    """Returns a row's parameters under dotted names, with the grid's labels.

    Example:
        `{"aggregator": "sum", "aggregator.lambda_s": "0.4", "protocol.rounds": "5", "seed": "0", ...}`
    """
    params = row.params.model_dump(mode="json", exclude={"runtime"})
    plugins = {f"{kind}.plugin": f"{row.plugins[kind].name} {row.plugins[kind].version}" for kind in PLUGIN_KINDS}
    return texts({**row.coords, **plugins, **flatten({**params, "seeding": params.pop("seeds"), "seeds": row.seeds})})


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Flattens nested objects to dotted names; a list becomes compact JSON, an empty object nothing."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for name, value in flatten(values).items()
        if value != {}
    }


def curve_points(records: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Returns the curves of a cell.

    A line of `rounds.jsonl` with a `round` is a point of `round/...`, one with only a `task` of `task/...`. Of two
    records of the same round (a resumed cell) the later counts. Every finite number becomes a point, a list of numbers
    (accuracy per task) its mean. Rounds are numbered through all tasks.
    """
    rounds: dict[tuple[int, int], Mapping[str, Any]] = {}
    tasks: dict[int, Mapping[str, Any]] = {}
    for record in records:
        task, round_ = record.get("task"), record.get("round")
        if isinstance(task, int) and isinstance(round_, int):
            rounds[task, round_] = record
        elif isinstance(task, int):
            tasks[task] = {**tasks.get(task, {}), **record}
    points = []
    ordered = {"round": [rounds[key] for key in sorted(rounds)], "task": [tasks[key] for key in sorted(tasks)]}
    for prefix, found in ordered.items():
        for step, record in enumerate(found, start=1):
            body = {key: value for key, value in record.items() if key not in _COORDINATES}
            for path, value in flatten(body).items():
                numbers = [float(each) for each in (value if isinstance(value, list) else [value]) if _is_number(each)]
                if numbers:
                    name = f"{prefix}/{path.replace('.', '/')}"
                    points.append(Point(name, math.fsum(numbers) / len(numbers), step))
    return points


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
