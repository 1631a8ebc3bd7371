"""The critical difference diagram (Demšar 2006): mean ranks, and bars over those that are not told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Board
from fcilbench.boards.stats import align, critical_difference, mean_ranks, tie_groups
from fcilbench.charts.parts import Data, Records, finish, shown_names
from fcilbench.charts.theme import Theme
from fcilbench.errors import NothingSelectedError

if TYPE_CHECKING:
    import altair as alt

_LEAST_SEEDS = 5
"""Seeds of one scenario that stand for scenarios in mean ranks."""
_SIDE = 0.3
"""Largest share of the width for the names on one side."""


def data(board: Board, key: str) -> Data:
    """Returns the mean ranks of methods over scenarios without stress, or over the seeds of one.

    - `rows`: `id` (the method), `name`, `rank`, `level` (the line that its name stands in, from 1), `side` (`left` for
      the better half, else `right`), `text`, `tip`.
    - `bars`: `from` and `to` (ranks) of groups that are not told apart, `level` (from 1).

    Args:
        board: An accuracy board.
        key: A task identity or a selector.

    Raises:
        NothingSelectedError: If neither two scenarios nor five seeds of one are there for a test.
    """
    overall = next((each for each in board.overall if each.key == key), None)
    if overall is not None:
        ranked, units = [(each.aggregator, each.mean) for each in overall.methods], f"{overall.blocks} scenarios"
        difference = overall.critical_difference
    else:
        ranked, units, difference = _over_seeds(board, key)
    groups, places = tie_groups(ranked, difference), dict(ranked)
    bars = [{"from": places[own[0]], "to": places[own[-1]], "level": n} for n, own in enumerate(groups, start=1)]
    names, half = shown_names(name for name, _ in ranked), (len(ranked) + 1) // 2
    rows: Records = [
        {
            "id": name,
            "rank": rank,
            "level": place + 1 if place < half else len(ranked) - place,
            "side": "left" if place < half else "right",
            "name": names[name],
            "text": f"{rank:.2f}",
            "tip": f"{names[name]}\nmean rank {rank:.2f} over {units}",
        }
        for place, (name, rank) in enumerate(ranked)
    ]
    layout = {
        **{"methods": len(ranked), "bars": len(bars), "room": max(len(row["name"]) for row in rows)},
        "axis": [f"mean rank over {units}, {key}", f"critical difference {difference:.2f} (Nemenyi, 5 %)"],
    }
    return {"rows": rows, "bars": bars, "layout": [layout]}


def _over_seeds(board: Board, key: str) -> tuple[list[tuple[str, float]], str, float]:
    """Returns the mean ranks of one block over its common seeds, each of which counts as a scenario."""
    seeds, values = align(
        {
            entry.aggregator: entry.estimates[key][group.columns[0].metric].values
            for block in board.blocks[:1]
            for group in block.groups
            for entry in block.entries
            if group.key == key in entry.ranks
        }
    )
    if len(values) < 2 or len(seeds) < _LEAST_SEEDS or len(board.blocks) > 1:
        reason = f"no test under {key}: two methods need {_LEAST_SEEDS} seeds in common, or two scenarios"
        raise NothingSelectedError(reason)
    units = [{name: own[place] for name, own in values.items()} for place in range(len(seeds))]
    ranks = [(each.aggregator, each.mean) for each in mean_ranks(units, higher=True)]
    return ranks, f"{len(seeds)} seeds", critical_difference(len(values), len(seeds))


def chart(
    theme: Theme,
    title: str = "",
    width: float | str = 520,
    *,
    methods: int = 6,
    bars: int = 2,
    room: int = 14,
    axis: str | Sequence[str] = "mean rank",
) -> alt.LayerChart:
    """Returns the description.

    Of some `methods` and `bars` with `room` characters of the longest name; the title of the axis is `axis`.
    """
    import altair as alt

    line, bar = 1.5 * theme.size, 0.75 * theme.size
    top = (bars + 1) * bar
    height = top + line * ((methods + 1) // 2) + bar
    figure = theme.room(5)
    side = theme.room(room) + figure + theme.size
    side = min(side, _SIDE * (520 if isinstance(width, str) else width))
    x = alt.X(
        "rank:Q",
        title=axis if isinstance(axis, str) else [*axis],
        axis=alt.Axis(
            orient="top", grid=False, format="d", tickMinStep=1, tickCount=min(methods, 8), labelOverlap=True
        ),
        scale=alt.Scale(
            domain=[1, methods], nice=False, zero=False, rangeMin=side, rangeMax=alt.expr(f"width - {side:.0f}")
        ),
    )

    place = alt.Y("place:Q", axis=None, scale=alt.Scale(domain=[0, height], range=[0, height], nice=False))
    rows = alt.Chart(alt.NamedData("rows")).transform_calculate(place=f"{top:.4g} + datum.level * {line:.4g}")
    groups = alt.Chart(alt.NamedData("bars")).transform_calculate(place=f"datum.level * {bar:.4g}")
    stem: Any = {"color": theme.colours["dim"], "strokeWidth": theme.stroke / 2, "aria": False}
    layers: list[Any] = [rows.mark_rule(**stem).encode(x=x, y=place, y2=alt.value(0))]
    inner = side - theme.size / 3
    sides: Any = (("left", "right", 0, inner), ("right", "left", "width", alt.expr(f"width - {inner:.1f}")))
    for name, other, edge, end in sides:
        own = rows.transform_filter(f"datum.side == '{name}'")
        layers += [
            own.mark_rule(**stem).encode(x=x, x2=alt.value(edge), y=place),
            own.mark_text(align=name, baseline="bottom", dy=-theme.size / 8, limit=inner - figure).encode(
                x=alt.value(edge), y=place, text="name:N", tooltip="tip:N"
            ),
            own.mark_text(align=other, baseline="bottom", dy=-theme.size / 8, color=theme.colours["dim"]).encode(
                x=alt.value(end), y=place, text="text:N"
            ),
        ]
    layers.append(
        groups.mark_rule(color=theme.colours["method"], strokeWidth=1.8 * theme.stroke, aria=False).encode(
            x="from:Q", x2="to", y=place
        )
    )
    return finish(layers, theme, title, width, height)
