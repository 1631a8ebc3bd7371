from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fcilbench.boards.accuracy import AccuracyBoard
from fcilbench.boards.model import Board, Column, Estimate
from fcilbench.boards.render import format_estimate, render
from fcilbench.errors import UsageError

GOLDEN = Path(__file__).parent / "golden"
RATIO = Column(metric="faa", title="FAA", unit="ratio", better="higher")


@pytest.mark.parametrize(
    ("form", "width", "name"),
    [("table", 150, "wide.txt"), ("table", 80, "narrow.txt"), ("md", 80, "board.md")],
)
def test_text_is_the_golden_one(golden_rows, form, width, name):
    """The figures in the files are those of conftest.py, worked out by hand."""
    text = render(AccuracyBoard().build(golden_rows), form, width=width)
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_no_line_of_a_narrow_table_is_wider_than_the_terminal(golden_rows):
    text = render(AccuracyBoard().build(golden_rows), "table", width=80)
    assert max(len(line) for line in text.splitlines() if line[:1] not in "-*") <= 80


def test_json_is_stable_and_versioned(golden_rows):
    text = render(AccuracyBoard().build(golden_rows), "json")
    _assert_same(json.loads(text), json.loads((GOLDEN / "board.json").read_text(encoding="utf-8")))
    assert json.loads(text)["schema"] == 1
    assert Board.model_validate_json(text) == AccuracyBoard().build(golden_rows)


def _assert_same(found: Any, wanted: Any) -> None:
    """Compares to the six digits that the golden file gives; everything but fractions exactly."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            _assert_same(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for pair in zip(found, wanted, strict=True):
            _assert_same(*pair)
    else:
        assert found == (pytest.approx(wanted, abs=5e-7) if isinstance(wanted, float) else wanted)


@pytest.mark.parametrize(
    ("values", "ok", "text"),
    [
        ((0.6, 0.248414, 3), 3, "60.00 ± 24.84"),
        ((0.6, 0.248414, 3), 4, "60.00 ± 24.84 (n=3)"),
        ((0.6, None, 1), 1, "60.00 (n=1)"),
        ((None, None, 0), 2, "–"),
        ((-0.00001, 0.0, 2), 2, "0.00 ± 0.00"),
    ],
)
def test_figures_say_how_sure_they_are(values, ok, text):
    mean, half_width, n = values
    assert format_estimate(Estimate(mean=mean, half_width=half_width, n=n, values={}), RATIO, ok) == text


def test_other_units_are_not_per_cent():
    column = Column(metric="x", title="X", unit="s", better="lower")
    assert format_estimate(Estimate(mean=12.3456, half_width=0.5, n=2, values={}), column, 2) == "12.35 ± 0.5"


def test_labels_cannot_break_the_table(make_cell, make_row):
    cell = make_cell("sum")
    hostile = cell.model_copy(update={"aggregator": cell.aggregator.model_copy(update={"label": "a|b[red]\n_x_<i>"})})
    board = AccuracyBoard().build([make_row(hostile, {"faa/none": 0.5})])
    assert r"| a\|b[red] \_x\_&lt;i> | 1/1 |" in render(board, "md")
    assert "a|b[red]" in render(board, "table", width=150)


def test_ranks_are_shown_where_there_are_any(make_cell, make_row):
    rows = [
        make_row(make_cell(name, seed, evaluate=("none",)), {"faa/none": value + 0.01 * (seed % 2) * (name == "b")})
        for name, value in (("a", 0.5), ("b", 0.55))
        for seed in range(5)
    ]
    text = render(AccuracyBoard(metrics=("faa",)).build(rows), "md")
    assert "| a | 5/5 | – | 50.00 ± 0.00 | 2 of 2 |" in text
    # 0.55 0.56 0.55 0.56 0.55: mean 0.554, s 0.0054772, 2.776445 * s / sqrt(5) = 0.0068009
    assert "| b | 5/5 | – | 55.40 ± 0.68 | 1 of 2 |" in text


def test_an_unknown_format_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'json'"):
        render(AccuracyBoard().build([]), "jsn")
