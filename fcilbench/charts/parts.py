"""What several charts share: labels, kinds, figures as they are shown, encodings, and labels that are pushed apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Block, Column, Entry, Estimate, Group
from fcilbench.charts.theme import KINDS, SHAPES, SLOTS, Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.escape import line
from fcilbench.spec.row import Row
from fcilbench.tables import cut

if TYPE_CHECKING:
    import altair as alt

Records = list[dict[str, Any]]
Data = dict[str, Records]
"""Rows by the name of their data set. Its `layout` has one row, the keyword arguments of the chart that shows them."""
NAME = 24
"""Characters of a name at the end of a line; longer ones are cut, and the tip has all of it."""


def group_of(block: Block, key: str) -> Group:
    """Returns a block's group of columns.

    Raises:
        NothingSelectedError: If there is none of that key.
    """
    for group in block.groups:
        if group.key == key:
            return group
    keys = ", ".join(group.key for group in block.groups) or "nothing"
    raise NothingSelectedError(f"nothing is scored under {key} in {block.heading}", hint=f"there is {keys}")


def column_of(group: Group, metric: str | None) -> Column:
    """Returns the column of a metric, or the one that ranks.

    Raises:
        NothingSelectedError: If the group has no such column.
    """
    for column in group.columns:
        if metric in (None, column.metric):
            return column
    names = ", ".join(column.metric for column in group.columns)
    raise NothingSelectedError(f"no {metric} under {group.key} in these rows", hint=f"there is {names}")


def shown_names(names: Iterable[str]) -> dict[str, str]:
    """Returns names as one line of text each, by name; those that would look alike get a number."""
    shown: dict[str, str] = {}
    for name in names:
        text, number = line(name) or "(no name)", 2
        while text in shown.values():
            text, number = f"{line(name)} ({number})", number + 1
        shown[name] = text
    return shown


def marked(name: str, kind: str) -> str:
    """Returns a shown name with its kind where that is no method."""
    return name if kind == "method" else f"{name} ({kind})"


def short(name: str) -> str:
    """Returns a shown name that fits beside a point or at the end of a line."""
    return cut(name, NAME)


def scale_of(column: Column) -> float:
    """Returns the factor from a column's figures to those that are shown: ratios are in per cent."""
    return 100.0 if column.unit == "ratio" else 1.0


def axis_of(column: Column) -> str:
    """Returns the title of the axis of a column."""
    unit = {"ratio": " in %", "": ""}.get(column.unit, f" in {column.unit}")
    return f"{column.title}{unit}"


def interval(found: Estimate, column: Column) -> tuple[float | None, float | None]:
    """Returns the ends of the 95 % interval as they are shown; none without one.

    An accuracy is at least 0 and at most 100; a loss of accuracy may be negative.
    """
    if found.mean is None or found.half_width is None:
        return None, None
    low, high = (scale_of(column) * (found.mean + sign * found.half_width) for sign in (-1, 1))
    accuracy = column.unit == "ratio" and column.better == "higher" and column.metric != "bwt"
    return (max(0.0, low), min(100.0, high)) if accuracy else (low, high)


def best_first(entries: Sequence[Entry], key: str, column: Column) -> list[Entry]:
    """Returns entries by their mean, the best first; those without one come last, equal ones by name."""
    sign = 1 if column.better == "lower" else -1

    def order(entry: Entry) -> tuple[bool, float, str]:
        mean = entry.estimates[key][column.metric].mean
        return mean is None, 0.0 if mean is None else sign * mean, entry.aggregator

    return sorted(entries, key=order)


def highlighted(ranking: Sequence[Entry], key: str, chosen: Iterable[str] | None = None) -> dict[str, int]:
    """Returns the slots of the methods that have a colour of their own, by name.

    Args:
        ranking: Entries, best first.
        key: The task identity.
        chosen: Names of the methods; without, all if they are few, else the best control, the reference and the best.
    """
    names = [entry.aggregator for entry in ranking]
    if chosen is not None:
        wanted = set(chosen)
    elif len(names) <= SLOTS:
        wanted = set(names)
    else:
        first = {kind: next((e.aggregator for e in ranking if e.kind(key) == kind), None) for kind in KINDS[1:]}
        wanted = {name for name in first.values() if name is not None}
        methods = [entry.aggregator for entry in ranking if entry.kind(key) == "method"]
        wanted |= set(methods[: SLOTS - len(wanted)])
    return {name: slot for slot, name in enumerate([name for name in names if name in wanted][:SLOTS])}


def ended(entry: Entry, rows: Mapping[str, Row]) -> list[Row]:
    """Returns a method's rows that have a result, one for each seed."""
    return [rows[each] for each in entry.cells if each in rows and rows[each].status == "ok"]


def kind_colour(theme: Theme) -> alt.Color:
    """Returns the encoding of a kind as colour."""
    import altair as alt

    return alt.Color("kind:N", legend=None, scale=alt.Scale(domain=list(KINDS), range=theme.kinds))


def kind_shape() -> alt.Shape:
    """Returns the encoding of a kind as shape."""
    import altair as alt

    return alt.Shape("kind:N", legend=None, scale=alt.Scale(domain=list(KINDS), range=list(SHAPES)))


def slot_colour(theme: Theme) -> alt.Color:
    """Returns the encoding of a slot as colour."""
    import altair as alt

    return alt.Color("slot:O", legend=None, scale=alt.Scale(domain=list(range(SLOTS)), range=theme.slots))


def slot_dash(theme: Theme) -> alt.StrokeDash:
    """Returns the encoding of a slot as dashes."""
    import altair as alt

    return alt.StrokeDash("slot:O", legend=None, scale=alt.Scale(domain=list(range(SLOTS)), range=theme.slot_dashes))


def apart(layer: Any, field: str, gap: float) -> Any:
    """Pushes the places of labels apart: the layer gets a field `label_y`, each at least `gap` from the next.

    With the labels in the order of their places y_i, and g the gap, each label stands at i g + (M_i + m_i) / 2, where
    M_i is the largest y_j - j g up to it and m_i the smallest from it on: both grow with i, so no two are closer than
    g, and a label that has room stays where it is.
    """
    import altair as alt

    order = [alt.SortField(field)]
    return (
        layer.transform_window(label_i="row_number()", sort=order)
        .transform_calculate(label_d=f"datum.{field} - datum.label_i * {gap:.6g}")
        .transform_window(label_max="max(label_d)", frame=[None, 0], sort=order)
        .transform_window(label_min="min(label_d)", frame=[0, None], sort=order)
        .transform_calculate(label_y=f"datum.label_i * {gap:.6g} + (datum.label_max + datum.label_min) / 2")
    )


def haloed(text: Any, theme: Theme) -> list[Any]:
    """Returns the layers of a text that is read on top of lines: its outline in the colour of the page, and itself."""
    behind = text.copy()
    behind.mark.stroke, behind.mark.strokeWidth = theme.colours["back"], theme.size / 4
    behind.mark.strokeJoin, behind.mark.opacity = "round", 0.85
    return [behind, text]


def gap_of(theme: Theme, span: float, height: float) -> float:
    """Returns the height of a line of text in units of an axis that shows `span` units over `height`."""
    return 1.3 * theme.size * max(span, 1e-9) / height  # the axis is a little longer than what it shows


def finish(layers: Sequence[Any], theme: Theme, title: str, width: float | str, height: float) -> alt.LayerChart:
    """Returns a chart of some layers with its size and look.

    `width` is that of the whole picture, or `container`; `height` is that of the plot.
    """
    import altair as alt

    sized: Any = alt.layer(*layers)  # a facet only with a facet in it
    sized = sized.properties(
        width=width,
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        config=alt.Config.from_dict(theme.config(width)),
    )
    chart: alt.LayerChart = sized.properties(title=line(title)) if title else sized
    return chart
