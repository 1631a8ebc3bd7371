"""The best score so far against the rounds that were spent on tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fcilbench.boards.stats import estimate
from fcilbench.charts.lines import ACCURACY, Line, draw, layout, records
from fcilbench.charts.parts import Data, shown_names
from fcilbench.charts.theme import SLOTS, Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.escape import line

if TYPE_CHECKING:
    import altair as alt

Draws = Sequence[tuple[int, float | None]]
"""What was tried, in its order: the rounds that it took, and the score, if it has one (0 to 1)."""


def data(draws: Mapping[str, Draws], scored: str, chosen: Iterable[str] | None = None) -> Data:
    """Returns the best score so far of each method, after each of its draws, the best method first.

    - `rows`: as those of `fcilbench.charts.curves.data`, but `x` are the rounds spent so far.

    Args:
        draws: The draws of a study by method; of a record of a study, one draw with all of its rounds.
        scored: What scored them, e.g. `faa/inferred`.
        chosen: Names of the highlighted methods, at most eight; without, the best.

    Raises:
        NothingSelectedError: If no draw has a score.
    """
    found: dict[str, dict[float, float]] = {}
    for name, own in draws.items():
        spent, best = 0, None
        for rounds, score in own:
            spent += rounds
            best = score if best is None or (score is not None and score > best) else best
            if best is not None:
                found.setdefault(name, {})[float(spent)] = best
    if not found:
        raise NothingSelectedError("no score of a tuning study travelled with these rows")
    ranking = sorted(found, key=lambda name: (-max(found[name].values()), name))
    bright = set(ranking if chosen is None else chosen)
    slots = {name: slot for slot, name in enumerate([name for name in ranking if name in bright][:SLOTS])}
    names = shown_names(ranking)
    drawn = records(
        [
            Line(
                name, names[name], "method", slots.get(name, -1), {x: estimate({0: y}) for x, y in found[name].items()}
            )
            for name in ranking
        ],
        *(ACCURACY, lambda x: f"after {x:,.0f} rounds"),
    )
    return {"rows": drawn, "layout": [{**layout(drawn, zero=False), "axis": f"best {line(scored)} so far in %"}]}


def chart(
    theme: Theme,
    title: str = "",
    width: float | str = 520,
    *,
    room: int = 12,
    span: float = 100,
    dots: bool = True,
    axis: str = "best score so far in %",
) -> alt.LayerChart:
    """Returns the description.

    `room` characters of the longest name, `span` of the scores, whose axis has the title `axis`, `dots` on the lines.
    """
    x = "rounds spent on tuning"
    return draw(*(theme, title, width), x=x, y=axis, room=room, span=span, dots=dots, zero=False, step=True)
