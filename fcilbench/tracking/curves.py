"""Turns a cell's records into what trackers take: flat parameters and curve points."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcilbench.spec.row import PLUGIN_KINDS, Row

_COORDINATES = ("event", "task", "tasks", "round", "rounds")


@dataclass(frozen=True)
class Point:
    """One value of a curve at a step (counted from 1)."""

    name: str
    value: float
    step: int


def flat_params(row: Row) -> dict[str, str]:
    """Returns a row's parameters under dotted names, with the grid's labels.

    Example:
        `{"aggregator": "sum", "aggregator.lambda_s": "0.4", "protocol.rounds": "5", "seed": "0", ...}`
    """
    flat = {axis: str(value) for axis, value in row.coords.items()}
    flat |= {f"{kind}.plugin": f"{row.plugins[kind].name} {row.plugins[kind].version}" for kind in PLUGIN_KINDS}
    params = row.params.model_dump(mode="json", exclude={"runtime"})
    for origin, values in params.items():
        flat |= flatten(values, "seeding" if origin == "seeds" else origin)
    return flat | {f"seeds.{role}": str(value) for role, value in row.seeds.items()}


def flatten(value: Any, prefix: str) -> dict[str, str]:
    """Flattens nested objects to dotted names; a list becomes compact JSON, an empty object nothing."""
    if isinstance(value, Mapping):
        parts = (flatten(item, f"{prefix}.{key}") for key, item in value.items())
        return {key: text for part in parts for key, text in part.items()}
    return {prefix: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))}


def curve_points(records: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Returns the curves of a cell.

    A line of `rounds.jsonl` with a `round` is a point of `round/...`, one with only a `task` of `task/...`. Of two
    records of the same round (a resumed cell) the later counts. Every finite number becomes a point, a list of numbers
    (accuracy per task) its mean. Rounds are numbered through all tasks.
    """
    rounds: dict[tuple[int, int], Mapping[str, Any]] = {}
    tasks: dict[int, Mapping[str, Any]] = {}
    for record in records:
        task = record.get("task")
        if not isinstance(task, int):
            continue
        if isinstance(record.get("round"), int):
            rounds[task, record["round"]] = record
        else:
            tasks[task] = {**tasks.get(task, {}), **record}
    points = []
    ordered = {"round": [rounds[key] for key in sorted(rounds)], "task": [tasks[key] for key in sorted(tasks)]}
    for prefix, found in ordered.items():
        for step, record in enumerate(found, start=1):
            body = {key: value for key, value in record.items() if key not in _COORDINATES}
            points += [Point(name, value, step) for name, value in _numbers(body, prefix)]
    return points


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{path}/{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        numbers = [float(item) for item in value if _is_number(item)]
        if numbers:
            yield path, math.fsum(numbers) / len(numbers)
    elif _is_number(value):
        yield path, float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
