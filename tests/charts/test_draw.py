"""Descriptions as pictures: they are valid, warn of nothing, hold no names, are stable, and show labels as text."""

from __future__ import annotations

import inspect
import json
import re
from importlib.resources import files
from itertools import pairwise
from xml.etree import ElementTree

import altair
import jsonschema
import pytest
import vl_convert

from fcilbench.charts import budget, curves, diagnostics, forest, slices, theme
from fcilbench.charts.choose import FIGURES, Chosen, figure
from fcilbench.charts.draw import drawn, svg, write
from fcilbench.charts.theme import COLUMN, DARK, LIGHT, PAGE, PAPER
from fcilbench.errors import UsageError

SCHEMA = json.loads(files(altair).joinpath("vegalite/v6/schema/vega-lite-schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def every(hostile, fill, record, make_cell, make_row):
    """Each figure by name, of a folder whose methods have hostile names and where each figure has something."""
    # Names of classes are somebody else's, too.
    spread = {"clients": 2, "problem": None, "tasks": [{"classes": [*hostile], "counts": [[1] * 9, [0] * 8 + [4]]}]}
    store = fill({name: [0.8 - 0.05 * n + 0.01 * seed for seed in range(5)] for n, name in enumerate(hostile)})
    fill({"ncm": (0.5,) * 5, "joint": (0.9,) * 5})
    for place, value in enumerate((0.1, 1.0, 10.0)):
        fill({"sum": (0.4 + 0.1 * place, 0.5, 0.6)}, lambda_s=value)
    rows = list(store.latest().values())
    for row in rows:
        events = [
            {
                "event": "round",
                "task": n // 2,
                "round": n % 2,
                "rounds": 2,
                "loss": 1 / (n + 1),
                "logs": {"a/b": n, "c.d": 1.5},
            }
            for n in range(4)
        ]
        record(store, row, events)
    stressed = make_cell(hostile[0], 0, evaluate=("none",), stress="dropout")
    use = stressed.stress.model_copy(update={"params": {"rate": 0.5}, "identity": {"rate": 0.5}})
    stressed = stressed.model_copy(update={"stress": use})
    store.append(make_row(stressed, {"faa/none": 0.3}, accuracy={"none": [[0.5], [0.3, 0.3]]}))
    clean = [row for row in rows if row.coords["aggregator"] != "sum"]
    of = {"diagnostics": "a/b,c.d"}
    found = {}
    for name in FIGURES:
        own = {
            "matrix": [row for row in clean if row.coords["aggregator"] == hostile[0]],
            "forgetting": [row for row in clean if row.coords["aggregator"] == hostile[3]],
            "severity": list(store.latest().values()),
            "sweep": rows,
        }.get(name, clean)
        if name == "budget":
            found[name] = (
                budget,
                budget.data({label: [(4, 0.1), (4, 0.1 * n)] for n, label in enumerate(hostile)}, "x"),
                "",
            )
        else:
            chosen = Chosen(store, own, "none", of.get(name, ""), lambda row: spread)
            found[name] = figure(name, chosen)
    draws = [(dict.fromkeys(hostile[:4], n + 0.5), 0.1 * n) for n in range(3)]
    found["slices"] = slices, slices.data(draws, [hostile[0]]), hostile[2]
    return found


def test_every_description_is_valid_warns_of_nothing_and_is_equal_in_every_run(every, capfd):
    validator = jsonschema.Draft7Validator(SCHEMA)
    for name, (module, found, title) in every.items():
        for look, width in ((PAPER, COLUMN), (LIGHT, 520), (DARK, 360), (PAGE, 360)):
            description = drawn(module, found, look, title, width).to_dict()
            validator.validate(description)
            vl_convert.vegalite_to_svg(description, show_warnings=True)
            if look is PAPER:
                assert svg(description) == svg(description), name
        captured = capfd.readouterr()
        assert (captured.out, captured.err) == ("", ""), name


def test_a_description_holds_no_data_and_no_name_of_a_method(every, hostile):
    for name, (module, found, _) in every.items():
        if name == "slices":
            continue  # its axes are hyperparameters, which are titles
        description = module.chart(PAGE, "", 520, **found["layout"][0]).to_dict()
        text = json.dumps(description)
        assert "datasets" not in description
        assert '"values": [{' not in text, name
        for label in hostile:
            if len(label) > 10:
                assert json.dumps(label)[1:-1] not in text, name
        assert "http" not in text.replace("https://vega.github.io/schema/", ""), name


def test_hostile_labels_are_text(every):
    shown = {
        "</script><img src=x onerror=alert(1)>",
        "a \"b\" 'c' & d",
        "{{ 7 * 7 }} ${1 + 1}",
        "datum.mean || true",
        "__proto__",
        "constructor",
        "null",
        "two lines \\u202eand a turn",
    }
    allowed = {"svg", "g", "path", "text", "rect", "line", "defs", "linearGradient", "stop", "clipPath", "tspan"}
    for name, (module, found, title) in every.items():
        root = ElementTree.fromstring(svg(drawn(module, found, LIGHT, title, 900).to_dict()))
        assert {each.tag.rpartition("}")[2] for each in root.iter()} <= allowed, name
        texts = {"".join(each.itertext()) for each in root.iter() if each.tag.endswith("}text")}
        if name == "forest":
            assert shown <= texts
            assert any(re.fullmatch("x+…", text) for text in texts)
        if name == "critical-difference":
            assert {"__proto__", "constructor", "null"} <= texts


def test_labels_that_look_alike_stay_two_lines(fill, data_of):
    store = fill({"a b": (0.5,), "a  b": (0.6,)})
    rows = data_of("forest", store)["rows"]
    assert {row["id"]: row["label"] for row in rows} == {"a  b": "a b", "a b": "a b (2)"}


def test_files_have_the_width_of_a_column_and_their_kind(every, tmp_path):
    module, found, title = every["forest"]
    for suffix, start in ((".svg", b"<svg"), (".pdf", b"%PDF"), (".png", b"\x89PNG")):
        path = tmp_path / f"figure{suffix}"
        write(module, found, title, path)
        assert path.read_bytes().startswith(start)
    assert 'width="245pt"' in (tmp_path / "figure.svg").read_text()  # 3.4 inches
    assert b"/MediaBox [0 0 245 " in (tmp_path / "figure.pdf").read_bytes()
    width = int.from_bytes((tmp_path / "figure.png").read_bytes()[16:20], "big")
    assert width == pytest.approx(3.4 * 300, abs=2)
    with pytest.raises(UsageError, match=r"no figure is written to '.gif' files"):
        write(module, found, title, tmp_path / "figure.gif")


def test_every_figure_is_as_wide_as_asked(every):
    for name, (module, found, title) in every.items():
        if name in ("matrix", "forgetting", "slices"):
            continue  # as wide as their cells
        for look, width in ((PAPER, COLUMN), (LIGHT, 360), (LIGHT, 520)):
            text = svg(drawn(module, found, look, title, width).to_dict())
            own = float(re.search(r'width="([\d.]+)"', text).group(1))
            assert own == pytest.approx(width, abs=1), (name, width)


def test_labels_at_the_ends_of_lines_are_apart(fill, data_of):
    """Eight methods whose curves end within half a point: no two names are closer than a line of text."""
    store = fill({f"m{n}": (0.5 + 0.0005 * n,) for n in range(8)})
    _, found, _ = figure("curves", Chosen(store, list(store.latest().values()), "none"))
    root = ElementTree.fromstring(svg(drawn(curves, found, LIGHT, "", 520).to_dict()))
    places = {}
    for each in root.iter():
        text = "".join(each.itertext())
        if each.tag.endswith("}text") and re.fullmatch(r"m\d", text) and "font-weight" in each.attrib:
            places[text] = float(re.search(r"translate\([\d.]+,([\d.]+)\)", each.attrib["transform"]).group(1))
    heights = sorted(places.values())
    assert len(heights) == 8
    assert min(b - a for a, b in pairwise(heights)) >= LIGHT.size
    assert [name for name, _ in sorted(places.items(), key=lambda each: -each[1])] == [f"m{n}" for n in range(8)]


def test_the_page_theme_has_a_variable_for_each_colour_and_both_palettes_have_them():
    assert PAGE.colours == {name: f"var(--{name})" for name in theme.LIGHT_COLOURS}
    assert theme.LIGHT_COLOURS.keys() == theme.DARK_COLOURS.keys()


@pytest.mark.parametrize("palette", [theme.LIGHT_COLOURS, theme.DARK_COLOURS])
def test_what_is_read_has_contrast(palette):
    """WCAG: 4.5 to 1 for text, 3 to 1 for marks."""

    def luminance(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    back = luminance(palette["back"])
    for name, colour in palette.items():
        high, low = sorted((luminance(colour), back), reverse=True)
        contrast = (high + 0.05) / (low + 0.05)
        if name not in ("back", "line"):
            assert contrast >= (4.2 if name in ("text", "dim") or re.fullmatch(r"c\d", name) else 3), (name, contrast)


def test_modules_of_charts_have_two_plain_functions(every):
    for module, found, _ in every.values():
        assert found["layout"][0].keys() <= inspect.signature(module.chart).parameters.keys()
        assert list(inspect.signature(module.chart).parameters)[:3] == ["theme", "title", "width"]
    assert {forest, diagnostics} <= {module for module, _, _ in every.values()}
