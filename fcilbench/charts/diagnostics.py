"""What methods log in each round or at the end of each task, e.g. the cosines of SUM's steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Block, Column
from fcilbench.boards.stats import estimate
from fcilbench.charts.lines import Line, draw, estimated, layout, records, starts
from fcilbench.charts.parts import Data, best_first, ended, group_of, shown_names
from fcilbench.charts.theme import SLOTS, Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.escape import line
from fcilbench.spec.row import Row

if TYPE_CHECKING:
    import altair as alt

Logs = Callable[[str], Sequence[Mapping[str, Any]]]
"""Returns the logs of a cell, by its id; see `fcilbench.boards.records.logs_of`."""
_PLAIN = Column(metric="diagnostic", title="Diagnostic", unit="", better="neither")


def names(block: Block, rows: Mapping[str, Row], logs: Logs) -> list[str]:
    """Returns the names of all that the methods of a block log."""
    own = {row.cell_id for entry in block.entries for row in ended(entry, rows)}
    return sorted({name for cell_id in own for each in logs(cell_id) for name in each["logs"]})


def data(block: Block, key: str, rows: Mapping[str, Row], logs: Logs, chosen: Collection[str]) -> Data:
    """Returns diagnostics of a block's methods over the rounds: a line for each method and diagnostic.

    - `rows` and `tasks`: as those of `fcilbench.charts.loss.data`; `id` is the method. A task's own diagnostic stands
      at its last round.

    Args:
        block: A scenario.
        key: A task identity, which ranks the methods.
        rows: The rows behind the block, by cell id.
        logs: Returns the logs of a cell, by its id.
        chosen: Names of diagnostics, e.g. `sum/step_cosine`.

    Raises:
        NothingSelectedError: If no method logs any of them.
    """
    ranking = best_first(block.entries, key, group_of(block, key).columns[0])
    lines: list[tuple[str, str, str, Any]] = []
    sizes, last = set(), 0
    for entry in ranking:
        cells = [[each for each in logs(row.cell_id) if each["logs"]] for row in ended(entry, rows)]
        told = [each for own in cells for each in own if each["logs"].keys() & {*chosen}]
        sizes |= {each["rounds"] for each in told if not entry.reference}
        last = max([last, *(each["task"] for each in told)])
        for name in chosen:
            values = [_line(own, name) for own in cells]
            if found := estimated([each for each in values if each], estimate):
                lines.append((entry.aggregator, name, entry.kind(key), found))
    if not lines:
        there = ", ".join(names(block, rows, logs)) or "nothing"
        raise NothingSelectedError(f"no method here logs {', '.join(chosen)}", hint=f"logged is {there}")
    methods, kinds = shown_names(dict.fromkeys(each[0] for each in lines)), {each[1] for each in lines}
    drawn = records(
        [
            Line(own, _name(methods, own, kinds, what), kind, slot if slot < SLOTS else -1, found)
            for slot, (own, what, kind, found) in enumerate(lines)
        ],
        *(_PLAIN, lambda x: f"after round {x:.0f}"),
    )
    begin = starts(last + 1, sizes.pop()) if len(sizes) == 1 else []
    axis = line(next(iter(kinds))) if len(kinds) == 1 else "logged value"
    return {"rows": drawn, "tasks": begin, "layout": [{**layout(drawn, zero=False), "axis": axis}]}


def _name(methods: Mapping[str, str], method: str, kinds: Iterable[str], what: str) -> str:
    """Returns what tells a line apart: the method, the diagnostic, or both."""
    several = len({*kinds}) > 1
    own = line(what).partition("/")[2] or line(what)
    if several and len(methods) == 1:
        return own
    return f"{methods[method]}, {own}" if several else methods[method]


def _line(found: Iterable[Mapping[str, Any]], name: str) -> dict[float, float]:
    return {float(each["step"]): each["logs"][name] for each in found if name in each["logs"]}


def chart(
    theme: Theme,
    title: str = "",
    width: float | str = 520,
    *,
    room: int = 12,
    span: float = 1,
    dots: bool = True,
    axis: str = "logged value",
) -> alt.LayerChart:
    """Returns the description.

    `room` characters of the longest name, `span` of the axis of values and its title `axis`, `dots` on the lines.
    """
    x = "round over all tasks"
    return draw(theme, title, width, x=x, y=axis, room=room, span=span, dots=dots, zero=False, tasks=True)
