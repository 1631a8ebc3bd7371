from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from fcilbench.boards.build import AccuracyBoard
from fcilbench.boards.model import Board, Column, Estimate
from fcilbench.boards.notes import INTERVAL
from fcilbench.boards.render import FORMATS, brief, format_estimate, number, render
from fcilbench.errors import UsageError

GOLDEN = Path(__file__).parent / "golden"
RATIO = Column(metric="faa", title="FAA", unit="ratio", better="higher")


@pytest.fixture
def board(golden_rows) -> Board:
    return AccuracyBoard().build(golden_rows)


@pytest.mark.parametrize(("form", "name"), [("table", "wide.txt"), ("md", "board.md"), ("tex", "board.tex")])
def test_text_is_the_golden_one(board, form, name):
    """The figures in the files are those of conftest.py, worked out by hand."""
    assert render(board, form, width=150) == (GOLDEN / name).read_text(encoding="utf-8")


def test_where_a_table_is_too_wide_each_group_has_its_own(board):
    text = render(board, "table", width=80)
    tables = [line for line in text.splitlines() if line[:1] not in "-*"]
    assert max(map(len, tables)) <= 80
    assert [sum(line.strip() == f"task: {key}" for line in tables) for key in ("none", "oracle")] == [2, 2]


def test_a_wide_table_is_one_of_each_group_in_markdown(make_cell, make_row):
    """Three groups of a figure and a rank and three shared columns are 9 columns; of three figures each they are 15."""
    keys = ("none", "inferred", "oracle")

    def shown(*names):
        rows = [
            make_row(
                make_cell(method, seed, evaluate=keys),
                {f"{name}/{key}": 0.1 * len(key) + 0.01 * seed * (method == "a") for name in names for key in keys},
            )
            for method in "ab"
            for seed in range(3)
        ]
        return render(AccuracyBoard().build(rows), "md")

    assert "### task" not in shown("faa")
    text = shown("faa", "aia", "forgetting")
    assert [line for line in text.splitlines() if line.startswith("###")] == [f"### task: {key}" for key in keys]
    tables = [line for line in text.splitlines() if line.startswith("| b |")]
    assert [line.split("|")[4].strip() for line in tables] == [f"{10 * len(key)}.00 (n=3)" for key in keys]


def test_a_brief_board_fits_a_screen_of_80_columns(board):
    """The figure that ranks each group, failures in view, and no note but the one on the interval."""
    text = render(brief(board), width=80)
    table = text.splitlines()[6:11]
    assert max(map(len, table)) <= 80
    assert [line.split() for line in table[:4]] == [
        ["task:", "none", "task:", "oracle"],
        [*("aggregator", "ok", "not", "ok"), *("FAA", "%", "↑") * 2],
        ["─" * size for size in (14, 3, 15, 13, 13)],
        ["fedavg", "‡oracle", "3/3", "–", "60.00", "±", "24.84", "85.00", "±", "12.42"],
    ]
    assert table[4].split() == ["sum", "1/3", "failed", "1,", "oom", "1", "75.00", "(n=1)", "90.00", "(n=1)"]
    assert [line for line in text.splitlines() if line[:1] in ("-", "*")] == [f"* {INTERVAL}"]


def test_json_is_versioned_and_reads_back(board):
    text = render(board, "json")
    assert (json.loads(text)["schema"], json.loads(text)["board"]) == (4, "accuracy")
    assert Board.model_validate_json(text) == board


def test_csv_has_a_line_for_each_figure(board):
    rows = list(csv.DictReader(io.StringIO(render(board, "csv"))))
    assert len(rows) == 3 * 2 * 3  # methods, task identities, metrics
    row = rows[0]
    assert [row[key] for key in ("aggregator", "ok", "group", "metric", "n", "low")] == [
        "fedavg",
        "3",
        "none",
        "faa",
        "3",
        "",
    ]
    assert (float(row["mean"]), float(row["half_width"])) == pytest.approx((0.6, 0.248414), abs=5e-7)


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
    size = Column(metric="x", title="X", unit="bytes", better="lower")
    assert [number(value, size) for value in (999, 343_790_000, 2.5e9)] == ["999 B", "343.8 MB", "2.5 GB"]


def test_labels_cannot_break_the_table(make_cell, make_row):
    cell = make_cell("sum")
    label = "a|b[red]\n_x_<i>`c`![d](//e)\x1b]0;f\x07\u202e"
    hostile = cell.model_copy(update={"aggregator": cell.aggregator.model_copy(update={"label": label})})
    board = AccuracyBoard().build([make_row(hostile, {"faa/none": 0.5})])
    text = r"| a\|b\[red\] \_x\_&lt;i&gt;\`c\`\!\[d\](//e)\\u001b\]0;f\\u0007\\u202e | 1/1 |"
    assert text in render(board, "md")
    for form in FORMATS:
        assert not {"\x1b", "\x07", "\u202e"} & set(render(board, form, width=150))


def test_ranks_are_shown_where_there_are_any(make_cell, make_row):
    rows = [
        make_row(make_cell(name, seed, evaluate=("none",)), {"faa/none": value + 0.01 * (seed % 2)})
        for name, value in (("a", 0.5), ("b", 0.55))
        for seed in range(5)
    ]
    text = render(AccuracyBoard().build(rows), "md")
    # 0.55 0.56 0.55 0.56 0.55: mean 0.554, s 0.0054772, 2.776445 * s / sqrt(5) = 0.0068009
    assert r"| a | 5/5 | – | 50.40 ± 0.68 | \[2\] of 2 |" in text
    assert r"| b | 5/5 | – | 55.40 ± 0.68 | \[1\] of 2 |" in text


def test_in_latex_the_best_mean_is_bold_and_ties_are_underlined(make_cell, make_row):
    """c - b is 0.009 and -0.011 by turns, mean 0.001: tied. a is 0.05 below."""
    rows = [
        make_row(make_cell(name, seed, evaluate=("none",)), {"faa/none": value + 0.01 * ((seed + shift) % 2)})
        for name, value, shift in (("a", 0.5, 0), ("b_1", 0.55, 0), ("c", 0.549, 1))
        for seed in range(5)
    ]
    text = render(AccuracyBoard().build(rows), "tex")
    assert r"a & 50.40 $\pm$ 0.68 & [3] of 3 \\" in text
    assert r"b\_1 & \underline{55.40 $\pm$ 0.68} & [1--2] of 3 \\" in text
    assert r"c & \textbf{55.50 $\pm$ 0.68} & [1--2] of 3 \\" in text


def test_in_latex_nothing_ties_with_a_best_method_that_was_not_tested(make_cell, make_row):
    """ridge is the same in every seed, so it has no rank; b and c tie with each other only."""
    rows = [
        make_row(make_cell(name, seed, evaluate=("none",)), {"faa/none": value + step * ((seed + shift) % 2)})
        for name, value, shift, step in (("b", 0.55, 0, 0.01), ("c", 0.549, 1, 0.01), ("ridge", 0.8, 0, 0.0))
        for seed in range(5)
    ]
    text = render(AccuracyBoard().build(rows), "tex")
    assert r"\textbf{80.00" in text
    assert r"\underline" not in text


def test_an_unknown_format_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'json'"):
        render(AccuracyBoard().build([]), "jsn")
