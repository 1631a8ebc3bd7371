"""Triangular heat maps: a colour and a figure for each task after each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fcilbench.charts.parts import Data, Records, finish
from fcilbench.charts.theme import Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.spec.metrics import Matrix

if TYPE_CHECKING:
    import altair as alt

_WRITTEN = 12
"""With more tasks the cells are too small for figures."""
_DARK_ABOVE = 0.55
"""Dark letters are read on the colours of cividis above this share of its range, white ones below."""


def cells(value: Callable[[int, int], float | None], matrices: Sequence[Matrix], tip: str, *, fixed: bool) -> Data:
    """Returns the cells whose value (a ratio) is known, of matrices of one size.

    Args:
        value: The value on task s after task t, given as (t, s).
        matrices: The matrices behind it, for their size.
        tip: Text with places for the figure, the task and the task after.
        fixed: Whether colours go from 0 to 100 %; else to the largest value.

    Raises:
        NothingSelectedError: If no value is known.
    """
    tasks = min((len(matrix) for matrix in matrices), default=0)
    found = {(t, s): each for t in range(tasks) for s in range(t + 1) if (each := value(t, s)) is not None}
    if not found:
        raise NothingSelectedError("no accuracy matrix in these rows")
    top = 1.0 if fixed else max(0.01, *found.values())
    rows: Records = [
        {
            "after": t + 1,
            "task": s + 1,
            "value": 100 * each,
            "dark": each > _DARK_ABOVE * top,
            "text": f"{100 * each:.0f}".replace("-0", "0") if tasks <= _WRITTEN else "",
            "tip": tip.format(f"{100 * each:.2f}", s + 1, t + 1),
        }
        for (t, s), each in found.items()
    ]
    return {"rows": rows, "layout": [{"tasks": tasks} if fixed else {"tasks": tasks, "top": 100 * top}]}


def draw(theme: Theme, title: str, width: float | str, *, tasks: int, top: float, legend: str) -> alt.LayerChart:
    """Returns the description: colours from 0 to `top` with their `legend`, of at most `width`."""
    import altair as alt

    beside = 9 * theme.size  # labels to the left, legend to the right
    cell = theme.cell if isinstance(width, str) else min(theme.cell, (width - beside) / tasks)
    plain = alt.Axis(domain=False, ticks=False, grid=False, labelAngle=0, labelOverlap=True)
    own = alt.Chart(alt.NamedData("rows")).encode(
        x=alt.X("task:O", title="on task", axis=plain),
        y=alt.Y("after:O", title="after task", axis=plain),
    )
    height = round(0.7 * cell * tasks)
    colours = alt.Color(
        "value:Q",
        scale=alt.Scale(domain=[0, top], scheme="cividis", clamp=True),
        legend=alt.Legend(title=legend, gradientLength=min(height, 150), gradientThickness=theme.size, tickCount=3),
    )
    squares = own.mark_rect().encode(color=colours, tooltip="tip:N")
    figures = own.mark_text(aria=False).encode(
        text="text:N", color=alt.when("datum.dark").then(alt.value("#111111")).otherwise(alt.value("#ffffff"))
    )
    whole = width if isinstance(width, str) else min(width, round(cell * tasks + beside))
    return finish([squares, figures], theme, title, whole, height)
