"""All that a page shows, for every choice that its reader has: computed here, once, with every text as it is shown.

The page's own code chooses among these and draws them. It makes no sentence and computes no figure, but for the points
lost in the matrix of a cell (`dialog.js`), which would take too many bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any

from fcilbench.boards.model import Block, Board, Column, Entry, Group
from fcilbench.boards.records import rounds_of
from fcilbench.boards.render import group_title
from fcilbench.charts import bytes as bytes_chart
from fcilbench.charts import curves as curves_chart
from fcilbench.charts import forest as forest_chart
from fcilbench.charts.parts import Data, Records, axis_of, best_first
from fcilbench.charts.theme import PAGE
from fcilbench.errors import NothingSelectedError
from fcilbench.pages.finding import Found, found_in, sentence
from fcilbench.pages.pack import columns
from fcilbench.pages.places import Place, metrics_of, places_of, scenario_key, stresses_of, tasks_of
from fcilbench.pages.tables import board_table, scenario_table, side_by_side
from fcilbench.pages.versus import fair_control, versus
from fcilbench.results.store import Store
from fcilbench.spec.row import Row

_WORDS = {"none": "no", "inferred": "inferred", "oracle": "yes"}
"""Whether a method is told the task, as the choice names it."""

_AXIS = "title of the axis"
_STEPS = {
    "span": (1, 2, 5, 10, 20, 40, 60, 80, 100),
    "top": (1, 2, 5, 10, 20, 40, 60, 80, 100),
    "room": (1, 8, 14, 18, 24, 40),
}
_PINNED = 5
_READ = {"id", "slot", "named", "last", "sent"}


class Descriptions:
    """The descriptions of a page's charts, each of them once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def place(self, chart: ModuleType, found: Data) -> dict[str, Any]:
        """Returns the number of a chart's description with its data, by the names of its data sets."""
        layout = _layout(found)
        title = json.dumps(layout.get("axis", ""))
        text = _described(chart, json.dumps(layout | {"axis": _AXIS} if "axis" in layout else layout))
        number = self.texts.setdefault(text.replace(json.dumps(_AXIS), title), len(self.texts))
        data = {name: columns(_used(rows, text)) for name, rows in found.items() if name != "layout"}
        return {"chart": number, "data": data}

    @property
    def parsed(self) -> list[Any]:
        """The descriptions in the order of their numbers."""
        return [json.loads(text) for text in self.texts]


def _layout(found: Data) -> dict[str, Any]:
    """Returns the arguments of a description, in steps: to make one takes longer than all else of a page."""
    given = dict(found["layout"][0])
    for name in _STEPS.keys() & given.keys():
        steps = [step for step in _STEPS[name] if step >= given[name]]
        given[name] = steps[0] if steps else math.ceil(given[name])
    return given


@lru_cache(maxsize=1024)
def _described(chart: ModuleType, layout: str) -> str:
    described = chart.chart(PAGE, "", "container", **json.loads(layout)).to_dict(validate=False)
    described.pop("$schema", None)  # a page asks for nothing
    return json.dumps(described, separators=(",", ":"), sort_keys=True)


def _used(rows: Records, description: str) -> Records:
    """Returns the columns that a description refers to or that the page's code reads."""
    names = {name for row in rows for name in row}
    field = r'"(?:field|x2|y2)":"{0}"|"flatten":\["{0}"\]|datum\.{0}\b'
    keep = {name for name in names if name in _READ or re.search(field.format(re.escape(name)), description)}
    return [{name: _short(value) for name, value in row.items() if name in keep} for row in rows]


def _short(value: Any) -> Any:
    """Returns a number with the digits that a picture shows."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return [_short(each) for each in value] if isinstance(value, list) else value


@dataclass
class Views:
    """The choices of a page, and what is shown for each of them, filled step by step.

    Attributes:
        rows: The rows behind the boards, by cell id.
        store: Their results folder, for curves.
        charts: Gets the descriptions of the charts.
        shown: By kind (`views`, `curves`, `tables`, `versus`, `findings`) and choice, e.g. `2.0.1`: the third scenario
            under the first task identity in the second metric.
    """

    rows: Mapping[str, Row]
    store: Store
    charts: Descriptions
    places: list[Place]
    tasks: list[str] = field(init=False)
    stresses: list[str] = field(init=False)
    metrics: list[Column] = field(init=False)
    scenes: list[dict[str, Any]] = field(default_factory=list)
    shown: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fills everything."""
        self.tasks, self.stresses = tasks_of(self.places), stresses_of(self.places)
        self.metrics = list(metrics_of(self.places).values())
        self.shown = {kind: {} for kind in ("views", "curves", "tables", "versus", "findings")}
        order = {cell_id: number for number, cell_id in enumerate(self.rows)}
        for number, place in enumerate(self.places):
            for stress, block in place.blocks.items():
                self.scenes.append(_scene(number, self.stresses.index(stress), block, place.about, order))
                for group in block.groups:
                    if group.key in self.tasks:
                        self._add_group(len(self.scenes) - 1, block, group)
        for task in self.tasks:
            for stress in self.stresses:
                for column in self.metrics:
                    self._add_choice(task, stress, column)

    def _add_group(self, scene: int, block: Block, group: Group) -> None:
        """Adds the charts, tables and comparisons of one scenario under a task identity."""
        key = f"{scene}.{self.tasks.index(group.key)}"
        ranking = best_first(block.entries, group.key, group.columns[0])
        pins = _pins(ranking, group.key)
        self.shown["tables"][key] = scenario_table(block, group, self.rows)
        self.shown["versus"][key] = {**versus(block, group), "pins": pins}
        with suppress(NothingSelectedError):  # no row has a matrix
            found = curves_chart.data(block, group.key, self.rows, self._rounds, pins)
            self.shown["curves"][key] = self.charts.place(curves_chart, found)
        for column in group.columns:
            forest = forest_chart.data(block, group.key, column.metric)
            found = bytes_chart.data(block, group.key, self.rows, column.metric, pins)
            self.shown["views"][f"{key}.{self.metrics.index(column)}"] = {
                "forest": self.charts.place(forest_chart, forest),
                "bytes": self.charts.place(bytes_chart, _beyond(found, forest)),
            }

    def _rounds(self, cell_id: str) -> list[dict[str, Any]]:
        return rounds_of(self.store, cell_id)

    def _add_choice(self, task: str, stress: str, column: Column) -> None:
        """Adds the finding of each place, and of all together, and the table of all, for one choice of the rest."""
        found: list[Found] = []
        blocks: list[tuple[Place, Block]] = []
        choice = f"{self.tasks.index(task)}.{self.stresses.index(stress)}.{self.metrics.index(column)}"
        for number, place in enumerate(self.places):
            block = place.blocks.get(stress)
            if block is None or not any(group.key == task and column in group.columns for group in block.groups):
                continue
            blocks.append((place, block))
            if each := found_in(block, place.name, task, column):
                found.append(each)
                self.shown["findings"][f"{number}.{choice}"] = sentence([each], task, stress, column)
        self.shown["findings"][f"all.{choice}"] = sentence(found, task, stress, column)
        if len(blocks) > 1:
            self.shown["tables"][f"all.{choice}"] = side_by_side(blocks, task, column, self.rows)


def views(boards: Sequence[Board], rows: Mapping[str, Row], store: Store, charts: Descriptions) -> dict[str, Any]:
    """Returns the choices of a page and what each of them shows.

    Args:
        boards: The boards; that of accuracies gives places, task identities, stress and metrics.
        rows: The rows behind them, by cell id.
        store: Their results folder, for curves.
        charts: Gets the descriptions of the charts.
    """
    accuracy = next((board for board in boards if board.board == "accuracy"), None)
    found = Views(rows, store, charts, places_of(accuracy) if accuracy else [])
    others = [board for board in boards if board.board != "accuracy" and board.blocks]
    return {
        "places": [{"name": place.name, "about": place.about} for place in found.places],
        "tasks": [[task, _WORDS.get(task, task)] for task in found.tasks],
        "stresses": found.stresses,
        "metrics": [[each.metric, each.title, each.better, axis_of(each)] for each in found.metrics],
        "scenes": found.scenes,
        "boards": [_other(board, found.places, found.stresses) for board in others],
        "overall": [_overall(board, each, found.tasks) for board in boards for each in board.overall],
        **found.shown,
    }


def _scene(place: int, stress: int, block: Block, about: str, order: Mapping[str, int]) -> dict[str, Any]:
    """Returns a scenario with its fair control, and the places of its methods' cells in the order of all."""
    seeds = {entry.seeds for entry in block.entries if entry.seeds}
    counts = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else f"{max(seeds, default=0)} seeds"
    cells = [[entry.aggregator, [order[each] for each in entry.cells if each in order]] for entry in block.entries]
    bar = fair_control(block)
    found = {"place": place, "stress": stress, "about": about, "seeds": counts, "cells": cells}
    return found | {"against": bar.aggregator if bar else ""}


def _beyond(found: Data, forest: Data) -> Data:
    """Returns the points of the chart of bytes without what the forest plot has of the same methods.

    Of a tip it has the last line alone, as `sent`: the first two are those of the other one.
    """
    known = {row["id"]: row for row in forest["rows"]}
    rows = [
        {name: value for name, value in row.items() if name in ("id", "named") or known[row["id"]].get(name) != value}
        | {"sent": row["tip"].rpartition("\n")[2], "tip": None}
        for row in found["rows"]
    ]
    return {**found, "rows": rows}


def _pins(ranking: Sequence[Entry], task: str) -> list[str]:
    """Returns the methods that are pinned at first: the best control and the best methods."""
    control = [entry.aggregator for entry in ranking if entry.kind(task) == "control"][:1]
    methods = [entry.aggregator for entry in ranking if entry.kind(task) == "method"]
    return control + methods[: _PINNED - len(control)]


def _other(board: Board, places: Sequence[Place], stresses: Sequence[str]) -> dict[str, Any]:
    """Returns a board other than that of accuracies as tables, each with the choices that it belongs to."""
    keys = {scenario_key(block): number for number, place in enumerate(places) for block in place.blocks.values()}
    blocks = []
    for block in board.blocks:
        stress = block.scenario.get("stress", "")
        blocks.append(
            {
                "place": keys.get(scenario_key(block)),
                "stress": stresses.index(stress) if stress in stresses else None,
                "heading": block.heading,
                "hardware": block.facts.get("hardware", ""),
                "tables": [_named_table(block, group) for group in block.groups],
            }
        )
    return {"name": board.board, "title": board.title, "blocks": blocks}


def _named_table(block: Block, group: Group) -> dict[str, Any]:
    return {"task": group.key.partition(",")[0], "title": group_title(group.key), **board_table(block, group)}


def _overall(board: Board, overall: Any, tasks: Sequence[str]) -> dict[str, Any]:
    return {
        "board": board.board,
        "task": tasks.index(overall.key) if overall.key in tasks else None,
        "metric": overall.metric,
        "over": overall.blocks,
        "difference": f"{overall.critical_difference:.2f}",
        "methods": [[each.aggregator, f"{each.mean:.2f}"] for each in overall.methods],
        "left_out": list(overall.left_out),
    }
