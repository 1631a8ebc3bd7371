"""What travels beside rows, read as files of a stranger: what has another type than it should counts as absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from fcilbench.boards.scenario import board_cells, method_of, recipe_of, scenario_of
from fcilbench.results.provenance import digest
from fcilbench.results.row import metric_values
from fcilbench.results.store import Store
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.row import Row
from fcilbench.suite.schema import AXES


class NamedEntry(BaseModel):
    """An entry of an axis: the name of a plugin as the suite writes it, and its label if it has one."""

    use: str
    label: str | None = None


class GridNames(BaseModel):
    """The entries of those axes that are plugins."""

    dataset: tuple[NamedEntry, ...]
    backbone: tuple[NamedEntry, ...]
    aggregator: tuple[NamedEntry, ...]
    stress: tuple[NamedEntry, ...] = ()


class SeedCount(BaseModel):
    """Number of repetitions."""

    count: int = Field(1, ge=0)


class Drawn(BaseModel):
    """A draw of a study: the rounds that it took, and its validation score if it came to its end."""

    rounds: int = Field(0, ge=0)
    score: float | None = None


class Study(BaseModel):
    """What was spent on the values of a rule, see `fcilbench.suite.schema.StudyRecord`."""

    digest: str = ""
    trials: int = Field(0, ge=0)
    budget: int = Field(0, ge=0)
    rounds: int = Field(0, ge=0)
    score: float | None = None
    scored: str = ""
    draws: tuple[Drawn, ...] = ()


class Rule(BaseModel):
    """A rule of a suite's `tuned` list as boards read it: which cells it is about, its values and their study."""

    where: dict[str, Any] = {}
    set: dict[str, Any] = {}
    study: Study | None = None
    sealed: bool | None = None

    def fits(self, row: Row) -> bool:
        """Says whether the rule of a lock file, which names labels, is about a row."""
        return all(key in row.coords and row.coords[key] == value for key, value in self.where.items())


class ResolvedSuite(BaseModel):
    """What boards read of a resolved suite, of any version of fcilbench."""

    name: str = ""
    description: str = ""
    protocol: dict[str, Any] = {}
    grid: GridNames | None = None
    seeds: SeedCount = SeedCount()
    tuned: tuple[Rule, ...] = ()


def read_suite(raw: Mapping[str, Any] | None) -> ResolvedSuite | None:
    """Returns a resolved suite; `None` if there is none, or it is no suite."""
    try:
        return ResolvedSuite.model_validate(raw)
    except (ValidationError, RecursionError):
        return None


def tuned_rules(row: Row, suites: Mapping[str, ResolvedSuite]) -> list[Rule]:
    """Returns the rules of the lock file that a row cites which are about it; the last one gave its values."""
    suite = suites.get(row.suite_digest or "") if row.tuned_from else None
    return [rule for rule in suite.tuned if rule.study and rule.fits(row)] if suite else []


def place_of(row: Row) -> tuple[str, ...]:
    """Returns what a row was tuned for, beside its method: data set, backbone and partition."""
    return tuple(str(row.coords.get(axis, "")) for axis in ("dataset", "backbone", "partition"))


def environment_of(store: Store, env: str) -> dict[str, Any] | None:
    """Returns the environment record of a row's `env`; `None` if the store has none, or it is no such record."""
    record = store.environment(env)
    parts = [record.get(key) or {} for key in ("worker", "packages")] if record is not None else [None]
    return record if all(isinstance(part, dict) for part in parts) else None


def rounds_of(store: Store, cell_id: str) -> list[dict[str, Any]]:
    """Returns the rounds of a cell's curve, each with `task`, `round`, `rounds`, `loss` and `accuracy`.

    The loss is a number or `None`; `accuracy` holds those on the tasks seen, by task identity, and may be empty.
    """
    found = []
    for each in store.rounds(cell_id):
        place = {key: each.get(key) for key in ("task", "round", "rounds")}
        if each.get("event") != "round" or not all(type(value) is int for value in place.values()):
            continue
        accuracy = each.get("accuracy")
        known = {key: own for key, own in accuracy.items() if _is_numbers(own)} if isinstance(accuracy, dict) else {}
        found.append({**place, "loss": loss if _is_number(loss := each.get("loss")) else None, "accuracy": known})
    return found


def logs_of(store: Store, cell_id: str) -> list[dict[str, Any]]:
    """Returns what a cell's method logged: of each round and each end of a task its `task`, `rounds`, `step`, `logs`.

    The step is the round over all tasks, counted from 1; what is logged at the end of a task has that of its last
    round. `logs` holds the numbers by name, and may be empty.
    """
    found: dict[tuple[int, float], dict[str, Any]] = {}
    rounds = 1
    for each in store.rounds(cell_id):
        task, logs, event = each.get("task"), each.get("logs"), each.get("event")
        place = each.get("round") if event == "round" else math.inf if event == "task" else None
        if type(task) is not int or not isinstance(logs, dict) or not isinstance(place, int | float):
            continue
        rounds = each["rounds"] if type(each.get("rounds")) is int else rounds
        numbers = {str(name): value for name, value in logs.items() if _is_number(value)}
        found[task, place] = {"task": task, "rounds": rounds, "logs": numbers}  # a resumed cell has rounds twice
    steps, records = 0, []
    for key in sorted(found):
        steps += key[1] != math.inf
        records.append({**found[key], "step": max(1, steps)})
    return records


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def is_printable(row: Row) -> bool:
    """Says whether boards can make figures of a row: a stranger's may have matrices or parameters without sense."""
    try:
        row.to_json()  # not with half a character in it
        (cell,) = board_cells([row], None)
        digest({"scenario": scenario_of(cell), "method": method_of(cell), "hardware": cell.hardware})
        {*recipe_of(cell).values()}  # of a recipe whose values are lists there is no set
        metric_values(row, METRICS)
        _ = [metric.cost(row) for metric in METRICS.values() if metric.cost]
    except Exception:  # whatever is wrong with it
        return False
    return row.coords.keys() >= {*AXES}
