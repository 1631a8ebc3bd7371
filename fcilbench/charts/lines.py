"""Charts of lines: at most eight have a colour and a name at their end, the rest are grey."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fcilbench.boards.model import Column, Entry, Estimate
from fcilbench.boards.render import number
from fcilbench.charts.parts import (
    Records,
    apart,
    finish,
    gap_of,
    haloed,
    highlighted,
    interval,
    marked,
    scale_of,
    short,
    shown_names,
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


def lines_of(
    entries: Sequence[Entry], key: str, found: Mapping[str, Any], chosen: Iterable[str] | None = None
) -> list[Line]:
    """Returns a line of estimates by place for each method, best first; `chosen` names the highlighted ones."""
    names, slots = shown_names(entry.aggregator for entry in entries), highlighted(entries, key, chosen)
    return [Line(n, names[n], e.kind(key), slots.get(n, -1), found[n]) for e in entries for n in (e.aggregator,)]


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
    begin = alt.Chart(alt.NamedData("tasks")).mark_rule(
        color=theme.colours["line"], strokeWidth=theme.stroke / 2, aria=False
    )
    layers: list[Any] = [begin.encode(x=place)] if tasks else []
    layers += _grey(theme, place, value, shape)
    layers += _bright(theme, place, value, shape, dots=dots, bands=bands, bars=bars)
    layers += _names(theme, place, gap_of(theme, span, height), right)
    return finish(layers, theme, title, width, height)


def _grey(theme: Theme, place: alt.X, value: alt.Y, shape: Literal["step-after", "linear"]) -> list[Any]:
    """Returns the layers of the lines that are not highlighted."""
    import altair as alt

    grey, colour = alt.Chart(alt.NamedData("rows")).transform_filter("datum.slot < 0"), theme.colours["grey"]
    line = grey.mark_line(color=colour, opacity=0.5, strokeWidth=theme.stroke / 2, interpolate=shape)
    alone = grey.transform_filter("datum.alone")
    point = alone.mark_point(filled=True, color=colour, opacity=0.6, size=theme.point / 2)
    return [
        line.encode(x=place, y=value, detail="line:N", tooltip="tip:N"),
        point.encode(x=place, y=value, tooltip="tip:N"),
    ]


def _bright(
    theme: Theme,
    place: alt.X,
    value: alt.Y,
    shape: Literal["step-after", "linear"],
    *,
    dots: bool,
    bands: bool,
    bars: bool,
) -> list[Any]:
    """Returns the layers of the highlighted lines: intervals, lines and points."""
    import altair as alt

    bright, colour = alt.Chart(alt.NamedData("rows")).transform_filter("datum.slot >= 0"), slot_colour(theme)
    layers: list[Any] = []
    if bands:
        area = bright.mark_area(opacity=0.13, aria=False)
        layers.append(area.encode(x=place, y="lo:Q", y2="hi", detail="line:N", color=colour))
    if bars:
        rule = bright.mark_rule(opacity=0.5, strokeWidth=theme.stroke / 2, aria=False)
        layers.append(rule.encode(x=place, y="lo:Q", y2="hi", color=colour))
    front = bright.mark_line(strokeWidth=theme.stroke, interpolate=shape, aria=False)
    points = bright if dots else bright.transform_filter("datum.alone || datum.last")
    point = points.mark_point(filled=True, opacity=1, size=0.65 * theme.point, cursor="pointer")
    return [
        *layers,
        front.encode(x=place, y=value, detail="line:N", color=colour, strokeDash=slot_dash(theme)),
        point.encode(x=place, y=value, color=colour, tooltip="tip:N"),
    ]


def _names(theme: Theme, place: alt.X, gap: float, room: float) -> list[Any]:
    """Returns the layers of the names at the ends of the highlighted lines."""
    import altair as alt

    last = alt.Chart(alt.NamedData("rows")).transform_filter("datum.slot >= 0").transform_filter("datum.last")
    text = apart(last, "mean", gap).mark_text(
        align="left", dx=0.6 * theme.size, fontWeight="bold", limit=room, aria=False
    )
    return haloed(text.encode(x=place, y="label_y:Q", color=slot_colour(theme), text="name:N"), theme)
