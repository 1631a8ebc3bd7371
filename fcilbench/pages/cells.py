"""The cells behind the figures of a page, with every text as it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fcilbench.boards.model import Column
from fcilbench.boards.records import environment_of, logs_of, rounds_of
from fcilbench.boards.render import DASH, number
from fcilbench.escape import line
from fcilbench.pages.pack import columns
from fcilbench.results.private import hidden
from fcilbench.results.row import all_metrics
from fcilbench.results.store import Store
from fcilbench.spec.metrics import METRICS, Matrix
from fcilbench.spec.row import Row
from fcilbench.tables import flatten

_COUNTS = {"rounds", "visits", "tasks"}
"""Figures of the cost that are neither bytes nor, as their names end in `_s`, seconds."""
_PARTS = {"aggregation_s", "task_end_s", "evaluation_s", "device_s", "tasks"}
"""What a page leaves out of the cost: parts of the time, which the overhead board has, and what the matrix shows."""


def cells_of(rows: Iterable[Row], store: Store) -> dict[str, Any]:
    """Returns every cell, a list for each column; what cells share is there once.

    A cell has its `id` (12 digits), `seed`, `status`, `about` (pairs of name and text), `env` and `params` (numbers),
    `metrics` and `cost` (texts in the order of `names`), `matrix` (by task identity, accuracies in per cent as text),
    `loss` (of each round, or `None`) and `logs` (by name, pairs of the round over all tasks and the value).
    """
    params, environments = _Shared(), _Shared()
    names: dict[str, list[str]] = {"metrics": [], "cost": []}
    cells = []
    for row in map(hidden, rows):
        leaves = flatten(row.params.model_dump(mode="json"))
        own = [(name, _value(value)) for name, value in leaves.items() if value not in ({}, [])]
        cells.append(
            {
                "id": row.cell_id[:12],
                "seed": row.seed,
                "status": row.status,
                "about": _about(row),
                "env": environments.number(row.env),
                "params": params.number(json.dumps(own)),
                "metrics": _aligned(_metrics(row), names["metrics"]),
                "cost": _aligned(_cost(row), names["cost"]),
                "matrix": {key: _texts(matrix) for key, matrix in row.accuracy.items()},
                "loss": [_rounded(each["loss"]) for each in rounds_of(store, row.cell_id)],
                "logs": _logs(store, row.cell_id),
            }
        )
    return {
        "cells": columns(cells),
        "names": names,
        "params": [json.loads(each) for each in params.texts],
        "envs": [_environment(environment_of(store, env)) for env in environments.texts],
    }


class _Shared:
    """Texts that many cells have, each of them once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Returns the place of a text among all."""
        return self.texts.setdefault(text, len(self.texts))


def _aligned(pairs: Iterable[tuple[str, str]], names: list[str]) -> list[str]:
    """Returns texts in the order of names, which grow by those that are new; "" where there is none."""
    own = dict(pairs)
    names += [name for name in own if name not in names]
    return [own.get(name, "") for name in names]


def _about(row: Row) -> list[tuple[str, str]]:
    """Returns what identifies a cell, and why it has no result; seeds are too large for numbers of JavaScript."""
    facts = {
        "coordinates": " / ".join(str(value) for value in row.coords.values()),
        "suite": row.suite,
        "reason": row.reason,
        "device": row.device or "",
        "seeds": ", ".join(f"{role} {seed}" for role, seed in row.seeds.items()),
        "commit": (row.code.git_sha or "")[:12],
        "ended": f"{row.ended:%Y-%m-%d %H:%M} UTC",
        "attempts": str(row.attempts) if row.attempts != 1 else "",
        "log": f"cells/{row.cell_id[:12]}…/log.txt" if row.status != "ok" else "",
    }
    return [(name, text) for name, text in facts.items() if text]


def _metrics(row: Row) -> list[tuple[str, str]]:
    """Returns the figures of a cell that boards show, and the accuracy of each sample; `fcilbench show` has all."""
    shown = []
    for name, value in all_metrics(row).items():
        known = METRICS.get(name.partition("/")[0])
        if known is not None and (known.board or known.name == "accuracy_micro"):
            column = Column(metric=name, title=known.title, unit=known.unit, better=known.better)
            shown.append((name, DASH if value.value is None else number(value.value, column)))
    return shown


def _cost(row: Row) -> list[tuple[str, str]]:
    shown = []
    for name, value in row.cost.figures.items():
        unit = "" if name in _COUNTS else "s" if name.endswith("_s") else "bytes"
        text = number(value, Column(metric=name, title=name, unit=unit, better="lower"))
        if value and name not in _PARTS:
            shown.append((name, f"{text} s" if unit == "s" else text))
    return shown


def _texts(matrix: Matrix) -> list[list[str]]:
    return [["" if value is None else f"{100 * value:.2f}" for value in line] for line in matrix]


def _logs(store: Store, cell_id: str) -> dict[str, list[tuple[int, float | None]]]:
    """Returns what a method logged, e.g. the cosines of SUM's steps."""
    found: dict[str, list[tuple[int, float | None]]] = {}
    for each in logs_of(store, cell_id):
        for name, value in each["logs"].items():
            found.setdefault(line(name), []).append((each["step"], _rounded(value)))
    return found


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _environment(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "no record of it travelled with the row"
    worker, packages = record.get("worker") or {}, record.get("packages") or {}
    parts = {"python": record.get("python"), "cpu": record.get("cpu"), "torch": packages.get("torch"), **worker}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)
