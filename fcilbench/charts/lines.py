"""A chart of lines: at most eight have a colour and a name at their end, the rest are grey."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fcilbench.charts.parts import apart, finish, gap_of, slot_colour, slot_dash
from fcilbench.charts.theme import Theme

if TYPE_CHECKING:
    import altair as alt


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
    bands: bool,
    whole: bool = True,
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
        bands: Whether the intervals are shown, of the lines with a colour.
        whole: Whether the axis of `x` has ticks at whole numbers only.
    """
    import altair as alt

    height, right = theme.tall(width), theme.room(room) + theme.size
    step = alt.Axis(grid=False, format="d", tickMinStep=1) if whole else alt.Axis(grid=False)
    place = alt.X(
        "x:Q",
        title=x,
        axis=step,
        scale=alt.Scale(zero=False, nice=False, rangeMin=theme.size / 2, rangeMax=alt.expr(f"width - {right:.0f}")),
    )
    value = alt.Y("mean:Q", title=y, scale=alt.Scale(zero=zero, nice=True))
    rows = alt.Chart(alt.NamedData("rows"))
    grey, bright = rows.transform_filter("datum.slot < 0"), rows.transform_filter("datum.slot >= 0")
    back = grey.mark_line(color=theme.colours["grey"], opacity=0.5, strokeWidth=theme.stroke / 2).encode(
        x=place, y=value, detail="id:N", tooltip="tip:N"
    )
    alone = (
        grey.transform_filter("datum.alone")
        .mark_point(filled=True, color=theme.colours["grey"], opacity=0.6, size=theme.point / 2)
        .encode(x=place, y=value, tooltip="tip:N")
    )
    band = bright.mark_area(opacity=0.13, aria=False).encode(
        x=place, y="lo:Q", y2="hi", detail="id:N", color=slot_colour(theme)
    )
    front = bright.mark_line(strokeWidth=theme.stroke, aria=False).encode(
        x=place, y=value, detail="id:N", color=slot_colour(theme), strokeDash=slot_dash()
    )
    points = bright.mark_point(filled=True, opacity=1, size=0.65 * theme.point, cursor="pointer").encode(
        x=place, y=value, color=slot_colour(theme), tooltip="tip:N"
    )
    ends = bright.transform_filter("datum.last")
    names = (
        apart(ends, "mean", gap_of(theme, span, height))
        .mark_text(align="left", dx=0.6 * theme.size, fontWeight="bold", limit=right, aria=False)
        .encode(x=place, y="label_y:Q", color=slot_colour(theme), text="name:N")
    )
    layers = [back, alone, *([band] if bands else []), front, points, names]
    return finish(layers, theme, title, width, height)
