"""The score of the draws of a tuning study against each hyperparameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.boards.render import number
from fcilbench.charts.lines import ACCURACY
from fcilbench.charts.parts import Data, Records
from fcilbench.charts.theme import Theme
from fcilbench.errors import NothingSelectedError
from fcilbench.escape import line

if TYPE_CHECKING:
    import altair as alt


def data(draws: Sequence[tuple[Mapping[str, Any], float]], logarithmic: Sequence[str] = (), scored: str = "") -> Data:
    """Returns a row for each draw and hyperparameter.

    - `rows`: `slice` (the number of the hyperparameter), `value` (a number or a text), `score` (in per cent), `best`,
      `tip`.

    Args:
        draws: The values of each draw by hyperparameter, and its score (0 to 1).
        logarithmic: Hyperparameters that were drawn on a logarithmic scale.
        scored: What scored them, e.g. `faa/inferred`.

    Raises:
        NothingSelectedError: If there are no draws, or they have no hyperparameters.
    """
    names = sorted({name for values, _ in draws for name in values})
    if not names:
        raise NothingSelectedError("no draw of hyperparameters has a score")
    best = max(score for _, score in draws)
    plain = {name: all(type(values[name]) in (int, float) for values, _ in draws if name in values) for name in names}
    rows: Records = [
        {
            "slice": place,
            "value": values[name] if plain[name] else line(values[name]),
            "score": 100 * score,
            "best": score == best,
            "tip": f"{line(name)} {_shown(values[name])}\n{number(score, ACCURACY)} %",
        }
        for values, score in draws
        for place, name in enumerate(names)
        if name in values
    ]
    axes = [{"title": line(name), "number": plain[name], "log": plain[name] and name in logarithmic} for name in names]
    return {"rows": rows, "layout": [{"axes": axes, "score": f"{line(scored) or 'score'} in %"}]}


def _shown(value: Any) -> str:
    return f"{value:.4g}" if type(value) is float else line(value)


def chart(
    theme: Theme,
    title: str = "",
    width: float = 520,
    *,
    axes: Sequence[Mapping[str, Any]] = ({"title": "hyperparameter", "number": True, "log": False},),
    score: str = "score in %",
) -> alt.HConcatChart:
    """Returns the description: a plot for each of `axes`, side by side; the title of the scores is `score`."""
    import altair as alt

    panels = []
    beside = 5 * theme.size  # labels of the scores, and what parts two plots
    for place, each in enumerate(axes):
        scale = alt.Scale(type="log", nice=False, padding=theme.size / 2) if each["log"] else alt.Scale(zero=False)
        x = alt.X("value:Q", scale=scale) if each["number"] else alt.X("value:N")
        axis = alt.Axis(tickCount=3, grid=False, labelOverlap=True, labelAngle=0, format="~g" if each["number"] else "")
        y = alt.Y("score:Q", title=None if place else score, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
        best = alt.when("datum.best").then(alt.value(theme.colours["control"]))
        own = alt.Chart(alt.NamedData("rows")).transform_filter(f"datum.slice == {place}")
        points = own.mark_point(filled=True, opacity=0.9, size=theme.point).encode(
            x=x.title(each["title"]).axis(axis),
            y=y,
            color=best.otherwise(alt.value(theme.colours["method"])),
            tooltip="tip:N",
        )
        panels.append(points.properties(width=max(40.0, width / len(axes) - beside), height=theme.tall(width) * 0.7))
    whole: alt.HConcatChart = alt.hconcat(*panels, config=alt.Config.from_dict(theme.config(width)))
    return whole.properties(title=line(title)) if title else whole
