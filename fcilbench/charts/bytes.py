"""Accuracy against the bytes of a run, with the front of methods that nothing beats for fewer bytes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Block, Column
from fcilbench.boards.render import format_estimate, number
from fcilbench.charts.parts import (
    Data,
    Records,
    apart,
    axis_of,
    best_first,
    column_of,
    ended,
    finish,
    gap_of,
    group_of,
    haloed,
    highlighted,
    interval,
    kind_colour,
    kind_shape,
    marked,
    scale_of,
    short,
    shown_names,
)
from fcilbench.charts.theme import Theme
from fcilbench.spec.row import Row

if TYPE_CHECKING:
    import altair as alt

_BYTES = Column(metric="bytes", title="Bytes", unit="bytes", better="lower")
_NAMED = 3
"""Of the best methods so many are named, besides the front and the controls."""


def data(
    block: Block, key: str, rows: Mapping[str, Row], metric: str | None = None, chosen: Iterable[str] | None = None
) -> Data:
    """Returns the points of a block's methods under a task identity.

    - `rows`: `id` (the method), `name`, `kind`, `bytes` (up and down, whole run, all clients, mean over seeds; above
      0), `mean`, `lo`, `hi`, `front` (whether nothing with as few bytes is as good), `named`, `side` (`left` or
      `right`: where the name has room), `text`, `tip`. The reference is no competitor, so it is never on the front.
    - `front`: `bytes`, `mean` of the front, and its end at the most bytes of all.
    - `lines`: `id`, `name`, `kind`, `mean`, `side`, `tip` of what sends nothing: the logarithm of 0 has no place.

    Args:
        block: A scenario.
        key: The key of a group of columns, e.g. a task identity.
        rows: The rows behind the block, by cell id.
        metric: One of the group's columns; without, the one that ranks.
        chosen: Names of methods that are named beside the front; without, some of the best.

    Raises:
        NothingSelectedError: If the block has no such group or column.
    """
    column = column_of(group_of(block, key), metric)
    ranking = [entry for entry in best_first(block.entries, key, column) if ended(entry, rows)]
    names = shown_names(entry.aggregator for entry in ranking)
    slots = highlighted(ranking, key, chosen)
    named = {name for name in slots if chosen is not None or slots[name] < _NAMED}
    points: Records = []
    lines: Records = []
    for entry in ranking:
        found, kind = entry.estimates[key][column.metric], entry.kind(key)
        if found.mean is None:
            continue
        total = statistics.fmean(sent(row, key) for row in ended(entry, rows))
        lo, hi = interval(found, column)
        label = marked(names[entry.aggregator], kind)
        text, unit = format_estimate(found, column, entry.seeds), " %" if column.unit == "ratio" else ""
        point = {
            "id": entry.aggregator,
            "name": short(names[entry.aggregator]),
            "kind": kind,
            "bytes": total,
            "mean": scale_of(column) * found.mean,
            "lo": lo,
            "hi": hi,
            "named": entry.aggregator in named or (chosen is None and kind == "control"),
            "text": text,
            "tip": f"{label}\n{column.title} {text}{unit}\n{number(total, _BYTES)} up and down",
        }
        if total > 0:
            points.append(point)
        else:
            shown = {name: point[name] for name in ("id", "kind", "mean", "tip")}
            lines.append({**shown, "name": short(f"{names[entry.aggregator]}, no bytes")})
    ends = [row[name] for row in points for name in ("lo", "mean", "hi") if row[name] is not None]
    ends += [row["mean"] for row in lines]
    span = max(ends) - min(ends) if ends else 0.0
    front = _mark_front(points, column.better == "lower")
    _choose_sides(points, lines, span)
    return {"rows": points, "front": front, "lines": lines, "layout": [{"span": span, "axis": axis_of(column)}]}


def sent(row: Row, key: str) -> int:
    """Returns all bytes of a run, up and down, and under `inferred:LABEL` those of this selector, too."""
    own = row.cost.bytes_up + row.cost.bytes_down
    selector = row.cost.selectors.get(key.partition(":")[2])
    return own if selector is None else own + selector.bytes_up + selector.bytes_down


def _mark_front(points: Records, lower: bool) -> Records:
    """Marks and names the methods for which none of at most their bytes is at least as good, but equal ones.

    Returns:
        The front: bytes and mean of each, fewest bytes first, and its end at the most bytes of all.
    """
    best = math.inf
    for point in sorted(points, key=lambda each: (each["bytes"], each["mean"] if lower else -each["mean"])):
        value = point["mean"] if lower else -point["mean"]
        point["front"] = point["kind"] != "reference" and value < best
        point["named"] |= point["front"]
        best = min(best, value) if point["kind"] != "reference" else best
    front = [{name: row[name] for name in ("bytes", "mean")} for row in points if row["front"]]
    front.sort(key=lambda row: row["bytes"])
    return front + ([{"bytes": max(row["bytes"] for row in points), "mean": front[-1]["mean"]}] if front else [])


def _choose_sides(points: Records, lines: Records, span: float) -> None:
    """Puts names to the left of points in the right half, and those of lines where fewer points are above the line."""
    places = [math.log(point["bytes"]) for point in points]
    middle = (min(places) + max(places)) / 2 if places else 0.0
    for point, place in zip(points, places, strict=True):
        point["side"] = "left" if place > middle else "right"
    for each in lines:
        near = [p for p, row in zip(places, points, strict=True) if 0 <= row["mean"] - each["mean"] < 0.1 * span]
        each["side"] = "left" if 2 * sum(place <= middle for place in near) <= len(near) else "right"


def chart(
    theme: Theme, title: str = "", width: float | str = 520, *, span: float = 100, axis: str = "FAA in %"
) -> alt.LayerChart:
    """Returns the description; `span` is the range of the means and intervals, `axis` the title of theirs."""
    import altair as alt

    height = theme.tall(width)
    powers = "floor(log(datum.value) / LN10 + 1e-6)"
    labels = (
        f"abs(log(datum.value) / LN10 - {powers}) > 1e-5 ? '' : "
        f"format(pow(10, {powers} % 3), 'd') + ' ' + ['B', 'kB', 'MB', 'GB', 'TB', 'PB'][floor({powers} / 3)]"
    )
    x = alt.X(
        "bytes:Q",
        title="bytes up and down, whole run (logarithmic)",
        scale=alt.Scale(type="log", nice=False, padding=2 * theme.size),
        axis=alt.Axis(labelExpr=labels, tickCount=6, grid=False, labelOverlap=True),
    )
    y = alt.Y(
        "mean:Q", title=axis, axis=alt.Axis(tickCount=6), scale=alt.Scale(zero=False, nice=True, padding=theme.size / 2)
    )
    own = alt.Chart(alt.NamedData("rows"))
    without = (
        alt.Chart(alt.NamedData("lines"))
        .mark_rule(strokeDash=theme.dashes(4, 3), strokeWidth=0.6 * theme.stroke)
        .encode(y=y, color=kind_colour(theme), tooltip="tip:N")
    )
    front = (
        alt.Chart(alt.NamedData("front"))
        .mark_line(interpolate="step-after", strokeWidth=theme.stroke / 2, color=theme.colours["dim"], aria=False)
        .encode(x=x, y=y, order="bytes:Q")
    )
    intervals = own.mark_rule(opacity=0.45, strokeWidth=theme.stroke / 2, aria=False).encode(
        x=x, y="lo:Q", y2="hi", color=kind_colour(theme)
    )
    points = own.mark_point(filled=True, size=theme.point, opacity=1, cursor="pointer").encode(
        x=x, y=y, color=kind_colour(theme), shape=kind_shape(), tooltip="tip:N"
    )
    return finish(
        [without, front, intervals, *_names(theme, x, gap_of(theme, span, height)), points],
        *(theme, title, width, height),
    )


def _names(theme: Theme, x: alt.X, gap: float) -> list[Any]:
    """Returns the layers of the names of points and of lines, on either side."""
    import altair as alt

    layers: list[Any] = []
    sides: Any = (("right", "left", 1, "width"), ("left", "right", -1, 0))
    for side, other, sign, end in sides:
        named = alt.Chart(alt.NamedData("rows")).transform_filter(f"datum.named && datum.side == '{side}'")
        points = (
            apart(named, "mean", gap)
            .mark_text(align=other, baseline="bottom", dx=sign * 0.5 * theme.size, dy=-0.1 * theme.size, aria=False)
            .encode(x=x, y="label_y:Q", text="name:N")
        )
        lines = (
            alt.Chart(alt.NamedData("lines"))
            .transform_filter(f"datum.side == '{side}'")
            .mark_text(align=side, baseline="bottom", dx=-sign * theme.size / 3, dy=-theme.size / 6, aria=False)
            .encode(x=alt.value(end), y="mean:Q", color=kind_colour(theme), text="name:N")
        )
        layers += [*haloed(points, theme), *haloed(lines, theme)]
    return layers
