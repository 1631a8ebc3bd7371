"""Robustness: accuracy against the severity of a stressor, from the clean cells on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Block
from fcilbench.boards.stats import estimate
from fcilbench.charts.lines import ACCURACY, draw, layout, lines_of, places_of, records
from fcilbench.charts.parts import Data, best_first, ended, group_of
from fcilbench.charts.theme import Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.escape import line
from fcilbench.results.row import metric_values
from fcilbench.spec.row import Row
from fcilbench.tables import listed

if TYPE_CHECKING:
    import altair as alt

_CLEAN: Mapping[str, float] = {"clients": 0, "rate": 0, "sigma": 0, "rounds": 0, "shift": 0, "done": 1}
"""The severity at which a stressor does nothing, by its option; others (factors) have no such value on their axis."""
_NONE = "fcilbench/none"


def stressors(block: Block, rows: Mapping[str, Row]) -> list[str]:
    """Returns the names of the stressors of a block of the robustness board, full ones where they share a short one."""
    found = {row.plugins["stress"].name for entry in block.entries for row in ended(entry, rows)} - {_NONE}
    short = [name.rpartition("/")[2] for name in found]
    return sorted(name if short.count(own) > 1 else own for name, own in zip(found, short, strict=True))


def data(block: Block, key: str, rows: Mapping[str, Row], stressor: str, chosen: Iterable[str] | None = None) -> Data:
    """Returns the final accuracy of a block's methods by severity, the best method under stress first.

    - `rows`: as those of `fcilbench.charts.curves.data`, but `x` is the severity.

    The severity is the option of the stressor that differs between cells; if none does, the number of clients.

    Args:
        block: A block of the robustness board.
        key: A task identity or a selector.
        rows: The rows behind the block, by cell id.
        stressor: Name of a stressor.
        chosen: Names of the highlighted methods, at most eight.

    Raises:
        NothingSelectedError: If there are no cells under the stressor, or more than one of its options differs.
    """
    ranking = best_first(block.entries, key, group_of(block, key).columns[0])
    cells = {entry.aggregator: ended(entry, rows) for entry in ranking}
    under = [row for own in cells.values() for row in own if _is(row, stressor)]
    options, names = [row.params.stress for row in under], sorted({row.plugins["stress"].name for row in under})
    if not options:
        raise NothingSelectedError(f"no cell under {stressor} in these rows")
    if len(names) > 1:
        raise NothingSelectedError(f"{stressor} is the short name of {listed(names)}", hint="say one of them in full")
    option = _severity(options, stressor)
    found: dict[str, dict[float, Any]] = {}
    for name, own in cells.items():
        values: dict[float, dict[int, float | None]] = {}
        for row in own:
            place = row.params.stress.get(option) if _is(row, stressor) else _CLEAN.get(option)
            accuracy = metric_values(row, ("faa",)).get(f"faa/{key}")
            if (_is(row, stressor) or row.plugins["stress"].name == _NONE) and place is not None and accuracy:
                values.setdefault(float(place), {})[row.seed] = accuracy.value
        estimates = {x: estimate(values[x]) for x in sorted(values)}
        found[name] = {x: each for x, each in estimates.items() if each.mean is not None}
    shown = [entry for entry in ranking if found[entry.aggregator]]
    if not shown:
        raise NothingSelectedError(f"nothing was scored under {key} and {stressor} in these rows")
    drawn = records(lines_of(shown, key, found, chosen), ACCURACY, lambda x: f"at {option} {x:g}")
    ticks = places_of(drawn)
    axis = line(f"{stressor}: {option}")
    return {"rows": drawn, "layout": [{**layout(drawn, zero=True), "axis": axis, "ticks": ticks}]}


def _is(row: Row, stressor: str) -> bool:
    name = row.plugins["stress"].name
    return stressor in (name, name.rpartition("/")[2])


def _severity(options: list[dict[str, Any]], stressor: str) -> str:
    """Returns the option whose number differs."""
    numbers = {key for each in options for key, value in each.items() if type(value) in (int, float)}
    differ = sorted(key for key in numbers if len({each.get(key) for each in options}) > 1)
    if len(differ) > 1:
        reason = f"{stressor}: {', '.join(differ)} differ, and the figure has one axis of severity"
        raise NothingSelectedError(reason, hint="choose cells with --only, by the label of their stress")
    if differ or "clients" in numbers:
        return differ[0] if differ else "clients"
    if not numbers:
        raise NothingSelectedError(f"{stressor} has no option that is a number, so no severity")
    return min(numbers)


def chart(
    theme: Theme,
    title: str = "",
    width: float | str = 520,
    *,
    room: int = 12,
    span: float = 100,
    dots: bool = True,
    axis: str = "severity",
    ticks: Sequence[float] | None = None,
) -> alt.LayerChart:
    """Returns the description.

    `room` characters of the longest name, `span` of accuracies, `dots` on the lines; the severities have the title
    `axis` and ticks at `ticks`.
    """
    y = "FAA in %"
    return draw(theme, title, width, x=axis, y=y, room=room, span=span, dots=dots, ticks=ticks, zero=True)
