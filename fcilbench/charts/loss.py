"""Training loss of the clients, weighted by their samples, after each round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Block, Column
from fcilbench.boards.stats import estimate
from fcilbench.charts.curves import Rounds
from fcilbench.charts.lines import draw, estimated, layout, lines_of, records, starts
from fcilbench.charts.parts import Data, best_first, ended, group_of
from fcilbench.charts.theme import Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.spec.row import Row

if TYPE_CHECKING:
    import altair as alt

_LOSS = Column(metric="loss", title="Loss", unit="", better="lower")


def data(block: Block, key: str, rows: Mapping[str, Row], rounds: Rounds, chosen: Iterable[str] | None = None) -> Data:
    """Returns the loss of a block's methods after each round, the best method first.

    - `rows`: as those of `fcilbench.charts.curves.data`, but `x` is the round over all tasks, from 1, and no figure is
      in per cent.
    - `tasks`: `x` between two rounds, where a task begins; none where methods have rounds of their own.

    Args:
        block: A scenario.
        key: A task identity, which ranks the methods; the loss is the same under each.
        rows: The rows behind the block, by cell id.
        rounds: Returns the rounds of a cell, by its id.
        chosen: Names of the highlighted methods, at most eight.

    Raises:
        NothingSelectedError: If no round has a loss.
    """
    ranking = best_first(block.entries, key, group_of(block, key).columns[0])
    cells = {entry.aggregator: [_by_round(rounds, row.cell_id) for row in ended(entry, rows)] for entry in ranking}
    losses = {name: [line for own in lines if (line := _line(own))] for name, lines in cells.items()}
    found = {name: estimated(lines, estimate) for name, lines in losses.items() if lines}
    shown = [entry for entry in ranking if found.get(entry.aggregator)]
    if not shown:
        raise NothingSelectedError("no training loss in the curves of these rows: they hold no rounds.jsonl")
    drawn = records(lines_of(shown, key, found, chosen), _LOSS, lambda x: f"after round {x:.0f}")
    trained = [own for entry in shown if not entry.reference for own in cells[entry.aggregator]]
    sizes = {each["rounds"] for own in trained for each in own}  # the reference learns all tasks at once
    last = max((each["task"] for own in trained for each in own), default=0)
    begin = starts(last + 1, sizes.pop()) if len(sizes) == 1 else []
    return {"rows": drawn, "tasks": begin, "layout": [layout(drawn, zero=True)]}


def _by_round(rounds: Rounds, cell_id: str) -> list[Mapping[str, Any]]:
    """Returns the rounds of a cell in their order; of two records of one, in a resumed cell, the later counts."""
    last = {(each["task"], each["round"]): each for each in rounds(cell_id)}
    return [last[place] for place in sorted(last)]


def _line(found: Sequence[Mapping[str, Any]]) -> dict[float, float]:
    """Returns the loss by round, counted over all tasks from 1; nobody may have trained in a round."""
    return {float(step): each["loss"] for step, each in enumerate(found, start=1) if each["loss"] is not None}


def chart(
    theme: Theme, title: str = "", width: float | str = 520, *, room: int = 12, span: float = 1, dots: bool = True
) -> alt.LayerChart:
    """Returns the description: `room` characters of the longest name, `span` of the axis, `dots` on the lines."""
    x, y = "round over all tasks", "training loss"
    return draw(theme, title, width, x=x, y=y, room=room, span=span, dots=dots, zero=True, tasks=True)
