"""How a partition spreads samples: the count of each class at each client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fcilbench.charts.parts import Data, Records, finish
from fcilbench.charts.theme import Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.escape import line
from fcilbench.tables import counted

if TYPE_CHECKING:
    import altair as alt

_NUMBERED = 6
"""With more tasks their titles are numbers."""


def data(drawn: Mapping[str, Any]) -> Data:
    """Returns the counts of a partition, as `fcilbench data inspect --format json` has them (`partitions`).

    - `rows`: `client` (from 1), `class` (its place in the order of arrival, from 0), `end` (of its cell), `samples`
      (above 0), `tip`.
    - `tasks`: `start`, `middle`, `text` of each task.
    - `totals`: `client`, `text`: the samples of a client in all tasks.

    Args:
        drawn: A map with `clients`, `problem`, and `tasks`, each with `classes` (names) and `counts` by client.

    Raises:
        NothingSelectedError: If there is none, with its reason.
    """
    tasks = drawn["tasks"]
    if drawn["problem"] or not tasks:
        raise NothingSelectedError(f"no partition to draw: {drawn['problem'] or 'no tasks'}")
    rows: Records = []
    titles: Records = []
    start = 0
    for number, task in enumerate(tasks, start=1):
        size = len(task["classes"])
        text = f"task {number}" if len(tasks) <= _NUMBERED else str(number)
        titles.append({"start": start, "middle": start + size / 2, "text": text})
        rows += [
            {
                "client": client,
                "class": start + place,
                "end": start + place + 1,
                "samples": count,
                "tip": f"{counted(count, 'sample')} of {line(task['classes'][place])}\nclient {client}, task {number}",
            }
            for client, counts in enumerate(task["counts"], start=1)
            for place, count in enumerate(counts)
            if count
        ]
        start += size
    sums = [sum(sum(task["counts"][client]) for task in tasks) for client in range(drawn["clients"])]
    totals = [{"client": client, "text": f"{total:,}"} for client, total in enumerate(sums, start=1)]
    room = max(len(f"{total:,}") for total in sums)
    layout = {"clients": len(totals), "classes": start, "room": room}
    return {"rows": rows, "tasks": titles, "totals": totals, "layout": [layout]}


def chart(
    theme: Theme,
    title: str = "",
    width: float | str = 520,
    *,
    clients: int = 5,
    classes: int = 10,
    room: int = 6,
) -> alt.LayerChart:
    """Returns the description of some `clients` and `classes`; `room` characters of the longest total."""
    import altair as alt

    row = min(theme.row, 0.9 * theme.tall(width) / clients)
    right = theme.room(room) + theme.size / 2
    scale = alt.Scale(domain=[0, classes], nice=False, rangeMax=alt.expr(f"width - {right:.0f}"))
    x = alt.X("class:Q", title="class, in order of arrival; at the end of a row: all samples", scale=scale)
    x = x.axis(labels=False, ticks=False, grid=False, domain=False, titleAnchor="start")
    y = alt.Y("client:O", title="client").axis(domain=False, ticks=False, grid=False, labelOverlap=True)
    colour = alt.Color(
        "samples:Q",
        scale=alt.Scale(scheme="blues", domainMin=0),
        legend=alt.Legend(
            title="samples", gradientLength=min(row * clients, 90), gradientThickness=theme.size, tickCount=3
        ),
    )
    cells = alt.Chart(alt.NamedData("rows")).mark_rect(stroke=theme.colours["back"], strokeWidth=0.4 * theme.stroke)
    tasks = alt.Chart(alt.NamedData("tasks"))
    totals = alt.Chart(alt.NamedData("totals"))
    layers = [
        cells.encode(x=x, x2="end", y=y, color=colour, tooltip="tip:N"),
        tasks.mark_rule(color=theme.colours["grey"], strokeWidth=theme.stroke / 2, aria=False).encode(x="start:Q"),
        tasks.mark_text(baseline="bottom", dy=-theme.size / 4, color=theme.colours["dim"], aria=False).encode(
            x="middle:Q", y=alt.value(0), text="text:N"
        ),
        totals.mark_text(align="right", color=theme.colours["dim"], aria=False).encode(
            x=alt.value("width"), y=y, text="text:N"
        ),
    ]
    return finish(layers, theme, title, width, row * clients)
