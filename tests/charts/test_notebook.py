"""Charts of `fcilbench.load` in a notebook: Altair objects with their data, shown without a network."""

from __future__ import annotations

import altair
import pytest

import fcilbench
from fcilbench.errors import NothingSelectedError, UsageError


def test_the_tables_are_still_a_tuple_and_plot_draws(fill):
    store = fill({"fedavg": (0.5, 0.6), "sum": (0.7, 0.8)})
    results = fcilbench.load(store.root)
    rows, curves, matrices = results
    assert (len(rows), len(curves), len(matrices)) == (4, 0, 4 * 3)
    assert results.rows is rows
    chart = results.plot.forest()
    assert isinstance(chart, altair.LayerChart)
    assert [row["id"] for row in chart.to_dict()["datasets"]["rows"]] == ["sum", "fedavg"]
    only = results.plot.curves("aggregator:sum", title="SUM", width=300).to_dict()
    assert (only["title"], only["width"], {row["id"] for row in only["datasets"]["rows"]}) == ("SUM", 300, {"sum"})
    assert results.plot.matrix("aggregator:sum").to_dict()["title"] == "sum, none"


def test_a_chart_shows_itself_without_a_network(fill):
    chart = fcilbench.load(fill({"fedavg": (0.5, 0.6)}).root).plot.forest()
    for shown in (chart, chart.properties(title="another")):
        bundle = shown._repr_mimebundle_()
        assert set(bundle) == {"image/svg+xml", "text/plain"}
        assert "fedavg" in bundle["image/svg+xml"]
        assert "<script" not in bundle["image/svg+xml"]
    with altair.renderers.enable("mimetype"):
        bundle, _ = chart._repr_mimebundle_()
    assert any(key.startswith("application/vnd.vegalite") for key in bundle)


def test_every_figure_has_a_method_and_says_what_is_missing(fill):
    from fcilbench.charts.choose import FIGURES

    plot = fcilbench.load(fill({"fedavg": (0.5, 0.6)}).root).plot
    names = {name for name in dir(plot) if not name.startswith("_")}
    assert names == {name.replace("-", "_") for name in FIGURES}
    for name, said in (("loss", "no training loss"), ("severity", "no stressed"), ("budget", "no score of a tuning")):
        with pytest.raises(NothingSelectedError, match=said):
            getattr(plot, name)()
    with pytest.raises(UsageError, match="there is no figure"):
        plot._draw("pie", "")
