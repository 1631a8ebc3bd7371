"""Learning curves: mean accuracy on the tasks seen, after each task and where it was measured during one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Block
from fcilbench.boards.stats import estimate
from fcilbench.charts.lines import ACCURACY, draw, estimated, layout, lines_of, places_of, records
from fcilbench.charts.parts import Data, best_first, ended, group_of
from fcilbench.charts.theme import Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.spec.row import Row

if TYPE_CHECKING:
    import altair as alt

Rounds = Callable[[str], Sequence[Mapping[str, Any]]]
"""Returns the rounds of a cell, by its id; see `fcilbench.boards.records.rounds_of`."""


def data(
    block: Block, key: str, rows: Mapping[str, Row], rounds: Rounds | None = None, chosen: Iterable[str] | None = None
) -> Data:
    """Returns the learning curves of a block's methods under a task identity, the best method first.

    - `rows`: `id` (the method), `line` (its number), `name`, `kind`, `x` (the task, from 1; between two during a
      task), `mean`, `lo`, `hi` (the 95 % interval over seeds), `slot` (0 to 7, or -1 for a grey line), `last` (whether
      it is the end of its line), `alone` (whether it is all of it), `text`, `tip`.

    Of each method there are the places that all of its seeds have.

    Args:
        block: A scenario.
        key: A task identity or a selector.
        rows: The rows behind the block, by cell id.
        rounds: Where to find what was measured during tasks; without, there are only the ends of tasks.
        chosen: Names of the highlighted methods, at most eight; see `fcilbench.charts.parts.highlighted`.

    Raises:
        NothingSelectedError: If no row has an accuracy matrix under the identity.
    """
    ranking = best_first(block.entries, key, group_of(block, key).columns[0])
    found = {
        entry.aggregator: estimated(lines, estimate)
        for entry in ranking
        if (lines := [_line(row, key, rounds) for row in ended(entry, rows) if row.accuracy.get(key)])
    }
    shown = [entry for entry in ranking if found.get(entry.aggregator)]
    if not shown:
        raise NothingSelectedError(f"no accuracy matrix under {key} in these rows")
    drawn = records(lines_of(shown, key, found, chosen), ACCURACY, _when)
    return {"rows": drawn, "layout": [{**layout(drawn, zero=True), "ticks": places_of(drawn, whole=True)}]}


def _line(row: Row, key: str, rounds: Rounds | None) -> dict[float, float]:
    """Returns the mean accuracy on the tasks seen by its place."""
    measured = {
        each["task"] + (each["round"] + 1) / (each["rounds"] + 1): each["accuracy"][key]
        for each in (rounds(row.cell_id) if rounds else ())
        if key in each["accuracy"]
    }
    measured |= {t + 1.0: own for t, own in enumerate(row.accuracy[key]) if own and None not in own}
    return {x: statistics.fmean(own) for x, own in measured.items()}


def _when(x: float) -> str:
    return f"after task {x:.0f}" if x == int(x) else f"during task {int(x) + 1}"


def chart(
    theme: Theme,
    title: str = "",
    width: float | str = 520,
    *,
    room: int = 12,
    span: float = 100,
    dots: bool = True,
    ticks: Sequence[float] | None = None,
    bands: bool = False,
) -> alt.LayerChart:
    """Returns the description.

    `room` characters of the longest name, `span` of the axis of accuracies, `dots` on the lines, `ticks` of tasks,
    `bands` of intervals.
    """
    x, y = "after task", "accuracy on tasks seen in %"
    return draw(theme, title, width, x=x, y=y, room=room, span=span, dots=dots, ticks=ticks, bands=bands, zero=True)
