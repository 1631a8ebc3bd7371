"""The tables of a page: of one scenario, of several side by side, and of the other boards as they are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fcilbench.boards.model import Block, Column, Entry, Group
from fcilbench.boards.render import DASH, Head, best_of, format_estimate, format_rank, number, table_of
from fcilbench.boards.stats import difference, mean_ranks
from fcilbench.charts.parts import best_first, ended
from fcilbench.pages.papers import paper_of
from fcilbench.pages.places import Place
from fcilbench.pages.versus import fair_control, signed
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.row import Row

Cell = list[Any]
"""The text of a cell, what it is sorted by (`None` comes last, `True` is the number that the text begins with), and
whether it is the best of its column."""
_BYTES = Column(metric="bytes", title="bytes", unit="bytes", better="lower")
_SECONDS = Column(metric="round_s", title="s a round", unit="s", better="lower")
_ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}


def scenario_table(block: Block, group: Group, rows: Mapping[str, Row]) -> dict[str, Any]:
    """Returns the table of one scenario under a task identity: every metric, places, costs, cells, source.

    Returns:
        `heads`: text and whether the first click sorts upwards. `rows`: method, kind and cells. The cell of the
        first metric has a fourth entry, the paired difference to the scenario's fair control under this identity.
    """
    bar = fair_control(block)
    best = {column.metric: best_of(block, group.key, column) for column in group.columns}
    lines = []
    for entry in best_first(block.entries, group.key, group.columns[0]):
        rank, bytes_sent, seconds = entry.ranks.get(group.key), sent(entry, rows), _seconds(entry, rows)
        figures = [
            _figure(entry, group.key, column, entry.aggregator in best[column.metric]) for column in group.columns
        ]
        figures[0].append(_gap(entry, bar, group))
        place = [format_rank(rank), None if rank is None else rank.low + rank.high / 1000, False]
        lost = "".join(f", {status} {count}" for status, count in entry.failures.items())
        stale = f", {entry.stale} stale" if entry.stale else ""
        ok = [f"{entry.ok}/{entry.planned}{lost}{stale}", entry.ok, False]
        costs = [_cost(bytes_sent, _BYTES), _cost(seconds, _SECONDS)]
        lines.append(_line(entry, group.key, [*figures, place, *costs, ok]))
    heads = [
        [f"{column.title}{_unit(column)}{_ARROWS[column.better]}", column.better == "lower"] for column in group.columns
    ]
    return {"heads": [*heads, ["places", True], ["bytes", True], ["s a round", True], ["ok", False]], "rows": lines}


def side_by_side(
    places: Sequence[tuple[Place, Block]], task: str, column: Column, rows: Mapping[str, Row]
) -> dict[str, Any]:
    """Returns the table of a metric in several scenarios, with the mean place of methods that have a figure in each.

    Places go by the means alone, equal means share the mean of their places, and the reference has none: the mean place
    is a summary and no test.
    """
    found = {
        entry.aggregator: entry
        for _, block in reversed(places)
        for entry in reversed(best_first(block.entries, task, column))
    }
    by_place = [{entry.aggregator: entry for entry in block.entries} for _, block in places]
    best = [best_of(block, task, column) for _, block in places]
    means = _mean_places(by_place, task, column)
    lines = []
    for name, entry in found.items():
        own = [entries.get(name) for entries in by_place]
        figures = [
            _figure(each, task, column, name in marked) if each else [DASH, None, False]
            for each, marked in zip(own, best, strict=True)
        ]
        place = [f"{means[name]:.1f}", means[name], False] if name in means else [DASH, None, False]
        lines.append(_line(entry, task, [*figures, place, _range([sent(each, rows) for each in own if each])]))
    lines.sort(key=lambda line: (line["cells"][-2][1] is None, line["cells"][-2][1] or 0.0))
    heads = [[place.name, column.better == "lower"] for place, _ in places]
    return {"heads": [*heads, ["mean place", True], ["bytes", True]], "rows": lines}


def board_table(block: Block, group: Group) -> dict[str, Any]:
    """Returns a column group of any board as it is printed, with what its columns are sorted by."""
    heads = table_of(block, (group,))
    rows = [
        {"method": entry.aggregator, "kind": entry.kind(group.key), "cells": _texts(entry, group, heads)}
        for entry in block.entries
    ]
    titles = [[head.title, not (head.column and head.column.better == "higher")] for head in heads[1:]]
    return {"heads": titles, "rows": rows}


def sent(entry: Entry, rows: Mapping[str, Row]) -> float | None:
    """Returns the bytes of a run, up and down: the mean over the seeds of a method."""
    own = ended(entry, rows)
    return statistics.fmean(row.cost.bytes_up + row.cost.bytes_down for row in own) if own else None


def _seconds(entry: Entry, rows: Mapping[str, Row]) -> float | None:
    cost = METRICS["round_s"].cost
    assert cost is not None
    known = [value for row in ended(entry, rows) if (value := cost(row)) is not None]
    return statistics.fmean(known) if known else None


def _line(entry: Entry, task: str, cells: list[Cell]) -> dict[str, Any]:
    paper = paper_of(entry.plugin)
    source = [paper.source, paper.address] if paper else ["", ""]
    return {"method": entry.aggregator, "kind": entry.kind(task), "cells": cells, "source": source}


def _figure(entry: Entry, task: str, column: Column, best: bool) -> Cell:
    found = entry.estimates[task][column.metric]
    return [format_estimate(found, column, entry.seeds), None if found.mean is None else True, best]


def _gap(entry: Entry, bar: Entry | None, group: Group) -> str:
    column = group.columns[0]
    if bar is None or bar is entry:
        return ""
    found = difference(*(each.estimates[group.key][column.metric] for each in (entry, bar)))
    return "" if found.mean is None else signed(found, column)


def _cost(value: float | None, column: Column) -> Cell:
    return [DASH if value is None else number(value, column), value, False]


def _range(values: Sequence[float | None]) -> Cell:
    known = [value for value in values if value is not None]
    if not known:
        return [DASH, None, False]
    low, high = number(min(known), _BYTES), number(max(known), _BYTES)
    return [low if low == high else f"{low} – {high}", max(known), False]


def _unit(column: Column) -> str:
    return {"ratio": " %", "": ""}.get(column.unit, f" [{column.unit}]")


def _mean_places(by_place: Sequence[Mapping[str, Entry]], task: str, column: Column) -> dict[str, float]:
    means = [
        {
            name: mean
            for name, entry in entries.items()
            if not entry.reference and (mean := entry.estimates[task][column.metric].mean) is not None
        }
        for entries in by_place
    ]
    common = set.intersection(*map(set, means)) if means else set()
    if not common:
        return {}
    # A method counts its place among all that have a figure there, not among those that are everywhere.
    ranks = [mean_ranks([own], higher=column.better == "higher") for own in means]
    places = [{each.aggregator: each.mean for each in own} for own in ranks]
    return {name: statistics.fmean(own[name] for own in places) for name in common}


def _texts(entry: Entry, group: Group, heads: Sequence[Head]) -> list[Cell]:
    cells: list[Cell] = []
    for head in heads[1:]:
        if head.column is not None:
            mean = entry.estimates[group.key][head.column.metric].mean
            key: Any = float(f"{mean:.6g}") if mean is not None else None  # bytes have units of their own
        elif head.title == "rank":
            rank = entry.ranks.get(group.key)
            key = None if rank is None else rank.low + rank.high / 1000
        else:
            key = head.text(entry)
        cells.append([head.text(entry), key, False])
    return cells
