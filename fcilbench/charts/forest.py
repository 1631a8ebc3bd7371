"""The forest plot: methods by their score, best first, with interval, seeds and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fcilbench.boards.model import Block, Column, Entry
from fcilbench.boards.render import format_estimate, format_rank, number
from fcilbench.charts.parts import (
    Data,
    Records,
    axis_of,
    best_first,
    column_of,
    finish,
    group_of,
    interval,
    kind_colour,
    kind_shape,
    marked,
    scale_of,
    shown_names,
)
from fcilbench.charts.theme import KINDS, Theme

if TYPE_CHECKING:
    import altair as alt


def data(block: Block, key: str, metric: str | None = None) -> Data:
    """Returns the rows of a block's methods under a task identity, best first.

    - `rows`: `id` (the method), `label`, `kind`, `mean`, `lo`, `hi` (the 95 % interval; none without one), `values`
      (one of each seed), `text`, `tip`.
    - `lines`: `id`, `kind`, `mean` of the best control and of the reference.

    Args:
        block: A scenario.
        key: The key of a group of columns, e.g. a task identity.
        metric: One of the group's columns; without, the one that ranks.

    Raises:
        NothingSelectedError: If the block has no such group or column.
    """
    group = group_of(block, key)
    column = column_of(group, metric)
    ranking = best_first(block.entries, key, column)
    names = shown_names(entry.aggregator for entry in ranking)
    rows: Records = []
    for entry in ranking:
        found, kind = entry.estimates[key][column.metric], entry.kind(key)
        lo, hi = interval(found, column)
        rows.append(
            {
                "id": entry.aggregator,
                "label": marked(names[entry.aggregator], kind),
                "kind": kind,
                "mean": None if found.mean is None else scale_of(column) * found.mean,
                "lo": lo,
                "hi": hi,
                "values": [scale_of(column) * value for value in found.values.values()],
                "text": format_estimate(found, column, entry.seeds),
                "tip": _tip(entry, key, column, marked(names[entry.aggregator], kind), column == group.columns[0]),
            }
        )
    best = [next((row for row in rows if row["kind"] == kind and row["mean"] is not None), None) for kind in KINDS[1:]]
    lines = [{name: row[name] for name in ("id", "kind", "mean")} for row in best if row]
    room = max((len(row["text"]) for row in rows), default=0)
    return {"rows": rows, "lines": lines, "layout": [{"rows": len(rows), "room": room, "axis": axis_of(column)}]}


def _tip(entry: Entry, key: str, column: Column, label: str, ranks: bool) -> str:
    """Returns what is told of a point: figures, places if the column `ranks`, and the value of each seed."""
    found = entry.estimates[key][column.metric]
    unit = " %" if column.unit == "ratio" else ""
    lines = [label, f"{column.title} {format_estimate(found, column, entry.seeds)}{unit}"]
    if ranks and key in entry.ranks:
        lines.append(f"places {format_rank(entry.ranks[key])}")
    if found.n > 1:
        lines.append(f"seeds {', '.join(f'{seed}: {number(value, column)}' for seed, value in found.values.items())}")
    return "\n".join(lines)


def chart(
    theme: Theme, title: str = "", width: float | str = 520, *, rows: int = 12, room: int = 14, axis: str = "FAA in %"
) -> alt.LayerChart:
    """Returns the description; `rows` methods, `room` characters of the longest figures, the title of the `axis`."""
    import altair as alt

    right = theme.room(room) + theme.size / 2
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(domain=False, ticks=False, grid=True))
    x = alt.X(
        "mean:Q",
        title=axis,
        axis=alt.Axis(tickCount=4, titleAnchor="start"),
        scale=alt.Scale(zero=True, nice=True, rangeMax=alt.expr(f"width - {right:.0f}")),
    )
    own = alt.Chart(alt.NamedData("rows"))
    lines = (
        alt.Chart(alt.NamedData("lines"))
        .mark_rule(strokeDash=theme.dashes(4, 3), strokeWidth=0.6 * theme.stroke, aria=False)
        .encode(x="mean:Q", color=kind_colour(theme))
    )
    seeds = (
        own.transform_flatten(["values"], ["value"])
        .mark_tick(thickness=theme.stroke / 2, height=0.4 * theme.row, opacity=0.55, aria=False)
        .encode(x="value:Q", y=y, color=kind_colour(theme))
    )
    intervals = own.mark_rule(strokeWidth=theme.stroke, aria=False).encode(
        x="lo:Q", x2="hi", y=y, color=kind_colour(theme)
    )
    points = own.mark_point(filled=True, size=theme.point, opacity=1, cursor="pointer").encode(
        x=x, y=y, color=kind_colour(theme), shape=kind_shape(), tooltip="tip:N"
    )
    figures = own.mark_text(align="right", color=theme.colours["dim"], aria=False).encode(
        x=alt.value("width"), y=y, text="text:N"
    )
    return finish([lines, seeds, intervals, points, figures], theme, title, width, theme.row * rows)
