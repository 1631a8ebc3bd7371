"""Charts of lines: at most eight have a colour and a name at their end, the rest are grey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fcilbench.boards.model import Column, Estimate
from fcilbench.boards.render import number
from fcilbench.charts.parts import (
    Records,
    apart,
    finish,
    gap_of,
    haloed,
    interval,
    marked,
    scale_of,
    short,
    slot_colour,
    slot_dash,
)
from fcilbench.charts.theme import Theme

if TYPE_CHECKING:
    import altair as alt

ACCURACY = Column(metric="accuracy", title="Accuracy", unit="ratio", better="higher")
_TICKS = 10
_DOTS = 25
"""Longer lines have no points: they would hide the line."""


@dataclass(frozen=True)
class Line:
    """One line: its method, the name and kind that are shown, its slot (-1 for grey), and an estimate by place."""

    id: str
    name: str
    kind: str
    slot: int
    points: Mapping[float, Estimate]


def estimated(
    lines: Sequence[Mapping[float, float]], estimate: Callable[[Mapping[int, float | None]], Estimate]
) -> Any:
    """Returns an estimate by place over the lines of a method's seeds, at the places that all of them have."""
    places = sorted(set.intersection(*map(set, lines))) if lines else []
    return {x: estimate({seed: line[x] for seed, line in enumerate(lines)}) for x in places}


def records(lines: Sequence[Line], column: Column, when: Callable[[float], str]) -> Records:
    """Returns the rows of lines, see `fcilbench.charts.curves.data`; `when` says where a place is."""
    rows: Records = []
    unit = " %" if column.unit == "ratio" else ""
    for place, line in enumerate(lines):
        for x, value in line.points.items():
            assert value.mean is not None  # a place has a value of each seed
            lo, hi = interval(value, column)
            text = number(value.mean, column)
            half = "" if value.half_width is None else f" ± {number(value.half_width, column)}"
            rows.append(
                {
                    "id": line.id,
                    "line": place,
                    "name": short(line.name),
                    "kind": line.kind,
                    "x": round(x, 6),
                    "mean": scale_of(column) * value.mean,
                    "lo": lo,
                    "hi": hi,
                    "slot": line.slot,
                    "last": x == max(line.points),
                    "alone": len(line.points) == 1,
                    "text": text,
                    "tip": f"{marked(line.name, line.kind)}\n{text}{half}{unit} {when(x)}",
                }
            )
    return rows


def layout(rows: Records, *, zero: bool, intervals: bool = False) -> dict[str, Any]:
    """Returns what the description must know: `intervals` if they are shown, `zero` if the axis begins there."""
    ends = [row[key] for row in rows for key in ("mean", *(("lo", "hi") if intervals else ())) if row[key] is not None]
    ends += [0.0] if zero else []
    places = sorted({row["x"] for row in rows})
    room = max((len(row["name"]) for row in rows if row["slot"] >= 0), default=0)
    return {"room": room, "span": max(ends) - min(ends), "dots": len(places) <= _DOTS}


def places_of(rows: Records, *, whole: bool = False) -> list[float] | None:
    """Returns the places of rows as the ticks of their axis, or those at whole numbers; none if they are many."""
    places = sorted({row["x"] for row in rows if not whole or row["x"] == int(row["x"])})
    return places if len(places) <= _TICKS else None


def starts(tasks: int, rounds: int) -> Records:
    """Returns where the second and later tasks begin, between two rounds, of tasks with some rounds each."""
    return [{"x": task * rounds + 0.5} for task in range(1, tasks)]


def draw(
    theme: Theme,
    title: str,
    width: float | str,
    *,
    x: str,
    y: str,
    room: int,
    span: float,
    zero: bool,
    dots: bool = True,
    bands: bool = False,
    bars: bool = False,
    tasks: bool = False,
    log: bool = False,
    ticks: Sequence[float] | None = None,
    step: bool = False,
) -> alt.LayerChart:
    """Returns the description of lines: of the data set `rows` with the columns of `fcilbench.charts.curves.data`.

    Args:
        theme: The look.
        title: Title of the chart.
        width: Of the whole chart.
        x: Title of the axis of `x`.
        y: Title of the axis of `mean`.
        room: Characters of the longest name at the end of a line.
        span: Range of the axis of `mean`.
        zero: Whether that axis begins at 0.
        dots: Whether each place of a line has a point.
        bands: Whether intervals are shown as bands.
        bars: Whether intervals are shown as bars.
        tasks: Whether lines of the data set `tasks` show where tasks begin.
        log: Whether the axis of `x` is logarithmic.
        ticks: Where the axis of `x` has ticks; without, at round numbers.
        step: Whether a line keeps its value until the next place.
    """
    import altair as alt

    height, right = theme.tall(width), theme.room(room) + theme.size
    ends: Any = {"nice": False, "rangeMin": theme.size / 2, "rangeMax": alt.expr(f"width - {right:.0f}")}
    scale = alt.Scale(type="log", **ends) if log else alt.Scale(zero=False, **ends)
    axis = alt.Axis(grid=False, labelOverlap=True, tickCount=6, format="~r")
    axis = axis if ticks is None else alt.Axis(grid=False, labelOverlap=True, values=[*ticks], format="~r")
    place = alt.X("x:Q", title=x, axis=axis, scale=scale)
    value = alt.Y("mean:Q", title=y, axis=alt.Axis(tickCount=6), scale=alt.Scale(zero=zero, nice=True))
    shape: Literal["step-after", "linear"] = "step-after" if step else "linear"
    colour, thin = slot_colour(theme), theme.stroke / 2
    rows = alt.Chart(alt.NamedData("rows"))
    grey, bright = rows.transform_filter("datum.slot < 0"), rows.transform_filter("datum.slot >= 0")
    begin = alt.Chart(alt.NamedData("tasks")).mark_rule(color=theme.colours["line"], strokeWidth=thin, aria=False)
    layers: list[Any] = [begin.encode(x=place)] if tasks else []
    layers += [
        grey.mark_line(color=theme.colours["grey"], opacity=0.5, strokeWidth=thin, interpolate=shape).encode(
            x=place, y=value, detail="line:N", tooltip="tip:N"
        ),
        grey.transform_filter("datum.alone")
        .mark_point(filled=True, color=theme.colours["grey"], opacity=0.6, size=theme.point / 2)
        .encode(x=place, y=value, tooltip="tip:N"),
    ]
    if bands:
        area = bright.mark_area(opacity=0.13, aria=False)
        layers.append(area.encode(x=place, y="lo:Q", y2="hi", detail="line:N", color=colour))
    if bars:
        rule = bright.mark_rule(opacity=0.5, strokeWidth=thin, aria=False)
        layers.append(rule.encode(x=place, y="lo:Q", y2="hi", color=colour))
    front = bright.mark_line(strokeWidth=theme.stroke, interpolate=shape, aria=False)
    points = bright if dots else bright.transform_filter("datum.alone || datum.last")
    names = apart(bright.transform_filter("datum.last"), "mean", gap_of(theme, span, height))
    text = names.mark_text(align="left", dx=0.6 * theme.size, fontWeight="bold", limit=right, aria=False)
    layers += [
        front.encode(x=place, y=value, detail="line:N", color=colour, strokeDash=slot_dash(theme)),
        points.mark_point(filled=True, opacity=1, size=0.65 * theme.point, cursor="pointer").encode(
            x=place, y=value, color=colour, tooltip="tip:N"
        ),
        *haloed(text.encode(x=place, y="label_y:Q", color=colour, text="name:N"), theme),
    ]
    return finish(layers, theme, title, width, height)
