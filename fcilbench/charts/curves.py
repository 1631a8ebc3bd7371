"""Learning curves: mean accuracy on the tasks seen, after each task and where it was measured during one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Block, Column
from fcilbench.boards.render import number
from fcilbench.boards.stats import estimate
from fcilbench.charts.lines import draw
from fcilbench.charts.parts import (
    Data,
    Records,
    best_first,
    ended,
    group_of,
    highlighted,
    interval,
    kind_of,
    marked,
    short,
    shown_names,
)
from fcilbench.charts.theme import Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.spec.row import Row

if TYPE_CHECKING:
    import altair as alt

Rounds = Callable[[str], Sequence[Mapping[str, Any]]]
"""Returns the rounds of a cell, by its id; see `fcilbench.boards.records.rounds_of`."""
_ACCURACY = Column(metric="accuracy", title="Accuracy", unit="ratio", better="higher")


def data(
    block: Block, key: str, rows: Mapping[str, Row], rounds: Rounds | None = None, chosen: Iterable[str] | None = None
) -> Data:
    """Returns the learning curves of a block's methods under a task identity, the best method first.

    - `rows`: `id` (the method), `name`, `kind`, `x` (the task, from 1; between two during a task), `mean`, `lo`, `hi`
      (the 95 % interval over seeds), `slot` (0 to 7, or -1 for a grey line), `last` (whether it is the end of its
      line), `alone` (whether it is all of it), `text`, `tip`.

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
    column = group_of(block, key).columns[0]
    ranking = best_first(block.entries, key, column)
    found = {}
    for entry in ranking:
        lines = [_line(row, key, rounds) for row in ended(entry, rows) if row.accuracy.get(key)]
        places = sorted(set.intersection(*map(set, lines))) if lines else []
        if places:
            found[entry.aggregator] = {x: estimate(dict(enumerate(line[x] for line in lines))) for x in places}
    if not found:
        raise NothingSelectedError(f"no accuracy matrix under {key} in these rows")
    shown = [entry for entry in ranking if entry.aggregator in found]
    names, slots = shown_names(found), highlighted(shown, key, chosen)
    records: Records = []
    for entry in shown:
        own, kind, name = found[entry.aggregator], kind_of(entry, key), names[entry.aggregator]
        for x, value in own.items():
            assert value.mean is not None  # there is one of each seed
            lo, hi = interval(value, _ACCURACY)
            text = number(value.mean, _ACCURACY)
            half = f" ± {number(value.half_width, _ACCURACY)}" if value.half_width is not None else ""
            when = f"after task {x:.0f}" if x == int(x) else f"during task {int(x) + 1}"
            records.append(
                {
                    "id": entry.aggregator,
                    "name": short(name),
                    "kind": kind,
                    "x": round(x, 6),
                    "mean": 100 * value.mean,
                    "lo": lo,
                    "hi": hi,
                    "slot": slots.get(entry.aggregator, -1),
                    "last": x == max(own),
                    "alone": len(own) == 1,
                    "text": text,
                    "tip": f"{marked(name, kind)}\n{text}{half} % {when}",
                }
            )
    room = max((len(row["name"]) for row in records if row["slot"] >= 0), default=0)
    span = max(row["mean"] for row in records)
    return {"rows": records, "layout": [{"room": room, "span": span}]}


def _line(row: Row, key: str, rounds: Rounds | None) -> dict[float, float]:
    """Returns the mean accuracy on the tasks seen by its place."""
    measured = {
        each["task"] + (each["round"] + 1) / (each["rounds"] + 1): each["accuracy"][key]
        for each in (rounds(row.cell_id) if rounds else ())
        if key in each["accuracy"]
    }
    measured |= {t + 1.0: own for t, own in enumerate(row.accuracy[key]) if own and None not in own}
    return {x: statistics.fmean(own) for x, own in measured.items()}


def chart(
    theme: Theme,
    title: str = "",
    width: float | str = 520,
    *,
    room: int = 12,
    span: float = 100,
    bands: bool = False,
) -> alt.LayerChart:
    """Returns the description; `room` characters of the longest name, `span` the largest mean, `bands` of intervals."""
    x, y = "after task", "accuracy on tasks seen in %"
    return draw(theme, title, width, x=x, y=y, room=room, span=span, bands=bands, zero=True)
