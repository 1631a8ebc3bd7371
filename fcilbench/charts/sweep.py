"""Accuracy against a hyperparameter that is the only difference between methods."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Block, Estimate
from fcilbench.boards.scenario import METHOD_FIELDS
from fcilbench.charts.lines import Line, draw, layout, places_of, records
from fcilbench.charts.parts import Data, axis_of, column_of, ended, group_of
from fcilbench.charts.theme import SLOTS, Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.escape import line
from fcilbench.spec.row import Row
from fcilbench.tables import flatten

if TYPE_CHECKING:
    import altair as alt

_LEAST = 3
"""Values that a hyperparameter must have."""
_LOG = 30
"""From this ratio of the largest to the smallest value on the axis is logarithmic."""
Series = dict[float, str]
"""The method of each value, by value."""


def hyperparameters(block: Block, rows: Mapping[str, Row]) -> dict[str, list[tuple[dict[str, Any], Series]]]:
    """Returns the hyperparameters that have three values or more in methods that differ in nothing else.

    A method is its plugin and its options, the local optimiser's recipe included. By `plugin: name`, each with its
    series: the options that they share, and the method of each value.
    """
    found: dict[str, Series] = defaultdict(dict)
    for entry in block.entries:
        own = ended(entry, rows)
        if not own:
            continue
        recipe = {key: value for key, value in own[0].params.protocol.items() if key in METHOD_FIELDS}
        options = {**flatten(own[0].params.aggregator), **recipe}
        for name, value in options.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = {key: other for key, other in options.items() if key != name}
                key = [f"{entry.plugin.removeprefix('fcilbench/')}: {name}", others]
                found[json.dumps(key, sort_keys=True)][float(value)] = entry.aggregator
    series: dict[str, list[tuple[dict[str, Any], Series]]] = defaultdict(list)
    for text, own_values in found.items():
        if len(own_values) >= _LEAST:
            name, others = json.loads(text)
            series[name].append((others, dict(sorted(own_values.items()))))
    return dict(series)


def data(block: Block, key: str, rows: Mapping[str, Row], name: str, metric: str | None = None) -> Data:
    """Returns the score of a block's methods by the value of a hyperparameter, in a line of each series.

    - `rows`: as those of `fcilbench.charts.curves.data`, but `x` is the value, and `id` the method of the point.

    Args:
        block: A scenario.
        key: The key of a group of columns, e.g. a task identity.
        rows: The rows behind the block, by cell id.
        name: One of `hyperparameters`.
        metric: One of the group's columns; without, the one that ranks.

    Raises:
        NothingSelectedError: If the hyperparameter has fewer than three values.
    """
    column = column_of(group_of(block, key), metric)
    found = hyperparameters(block, rows)
    if name not in found:
        there = ", ".join(found) or "none"
        raise NothingSelectedError(
            f"no sweep of {name} in these rows", hint=f"hyperparameters with three values: {there}"
        )
    entries = {entry.aggregator: entry for entry in block.entries}
    lines, methods = [], []
    for slot, (label, (_, series)) in enumerate(zip(_labels(found[name]), found[name], strict=True)):
        points: dict[float, Estimate] = {
            x: value
            for x, own in series.items()
            if (value := entries[own].estimates[key][column.metric]).mean is not None
        }
        methods += [series[x] for x in points]
        lines.append(Line(label, label, "method", slot if slot < SLOTS else -1, points))
    drawn = records(lines, column, lambda x: f"at {x:g}")
    if not drawn:
        raise NothingSelectedError(f"nothing was scored under {key} in the sweep of {name}")
    for row, own in zip(drawn, methods, strict=True):
        row["id"] = own
    values = [row["x"] for row in drawn]
    log = min(values) > 0 and max(values) / min(values) >= _LOG
    more = {"axis": line(name), "score": axis_of(column), "log": log, "ticks": places_of(drawn)}
    return {"rows": drawn, "layout": [{**layout(drawn, zero=False, intervals=True), **more}]}


def _labels(series: list[tuple[dict[str, Any], Series]]) -> list[str]:
    """Returns what tells the series of a hyperparameter apart: the options in which they differ; nothing of one."""
    if len(series) == 1:
        return [""]
    keys = sorted({key for others, _ in series for key in others})
    differ = [key for key in keys if len({json.dumps(others.get(key)) for others, _ in series}) > 1]
    return [line(", ".join(f"{key} {others.get(key)}" for key in differ)) for others, _ in series]


def chart(
    theme: Theme,
    title: str = "",
    width: float | str = 520,
    *,
    room: int = 12,
    span: float = 100,
    dots: bool = True,
    axis: str = "hyperparameter",
    score: str = "FAA in %",
    log: bool = False,
    ticks: Sequence[float] | None = None,
) -> alt.LayerChart:
    """Returns the description.

    `room` characters of the longest name, `span` of the scores, `dots` on the lines; the values have the title `axis`,
    on a logarithmic scale if `log` and ticks at `ticks`, and the scores the title `score`.
    """
    return draw(
        *(theme, title, width),
        x=axis,
        y=score,
        room=room,
        span=span,
        dots=dots,
        log=log,
        ticks=ticks,
        zero=False,
        bars=True,
    )
