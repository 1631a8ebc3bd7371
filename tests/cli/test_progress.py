import io
import time

import pytest
from rich.console import Console

from fcilbench.cli import console, progress
from fcilbench.cli.progress import cell_name, standing
from fcilbench.tables import duration

ROUND = {"event": "round", "task": 1, "tasks": 4, "round": 0, "rounds": 2, "loss": 0.41234}


@pytest.mark.parametrize(
    ("event", "share", "text"),
    [
        ({"event": "phase", "task": 0, "tasks": 4}, 0.0, "task 1/4"),
        (ROUND, (1 + 1 / 2) / 4, "task 2/4 round 1/2 loss 0.412"),
        ({**ROUND, "task": 3, "round": 1, "loss": None}, 1.0, "task 4/4 round 2/2"),
        ({"event": "task", "task": 1, "tasks": 4}, 0.5, "task 2/4"),
        ({"event": "decoding", "done": 10, "total": 30}, 0.0, "decoding 10/30 samples"),
        ({"event": "log", "text": "hello"}, 0.0, ""),
    ],
)
def test_how_far_a_cell_is(event, share, text):
    assert standing(event) == (share, text)


def test_texts():
    assert cell_name({"dataset": "digits", "aggregator": "sum", "seed": 3}) == "digits/sum#3"
    assert [duration(value) for value in (0.25, 42.4, 125, 3725)] == ["0.2 s", "42 s", "2 min 05 s", "1h02"]


@pytest.mark.parametrize(
    ("awaited", "lines"),
    [
        (0, ["running 3 cells in 2 slots on cpu"]),
        (1, ["running 2 cells in 2 slots on cpu", "waiting for 1 cell that another run trains"]),
        (3, ["waiting for 3 cells that another run trains"]),
    ],
)
def test_cells_that_another_run_trains_are_waited_for(capsys, awaited, lines):
    progress.RunProgress().run_started(3, ["cpu", "cpu"], awaited)
    assert capsys.readouterr().err.splitlines() == lines


def play(shown, make_cell, make_row, pause=0.0):
    """Two cells: one is killed, retried and ok; the other fails."""
    cell, cell_id = make_cell("sum"), "a" * 64
    shown.run_started(2, ["cpu"])
    shown.cell_started("cpu", cell, cell_id, 1)
    shown.cell_event(cell_id, ROUND)
    shown.cell_retried(cell, cell_id, "the worker died of SIGKILL")
    shown.cell_started("cpu", cell, cell_id, 2)
    shown.cell_event(cell_id, {"event": "decoding", "done": 10, "total": 30000})
    time.sleep(pause)  # bars are drawn four times a second
    shown.cell_event(cell_id, ROUND)
    time.sleep(pause)
    shown.note("cell [bold]x is left to process 1")
    shown.cell_finished(make_row(cell, {"faa/none": 0.6}))
    shown.cell_finished(make_row(make_cell("fedavg"), "failed"))
    shown.suite_finished()


@pytest.fixture(autouse=True)
def _fresh():
    console.err.cache_clear()
    yield
    console.err.cache_clear()


def test_plain_lines_are_seldom(make_cell, make_row, capsys, monkeypatch):
    clock = iter([0.0, 31.0, 31.0, 40.0, 45.0, 69.0])  # start, round, start, decoding, round
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    play(progress.RunProgress(), make_cell, make_row)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "running 2 cells in 1 slot on cpu"
    assert lines[1].startswith("start cpu aaaaaaaaaaaa ")
    assert lines[2].endswith("task 2/4 round 1/2 loss 0.412")
    assert lines[3].startswith("retry aaaaaaaaaaaa")
    assert lines[4].endswith("(attempt 2)")
    assert lines[5] == "cell [bold]x is left to process 1"
    assert lines[6].startswith("[1/2] ok ")
    assert lines[7].startswith("[2/2] failed ")


def test_live_bars(make_cell, make_row, monkeypatch):
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=160, highlight=False)
    monkeypatch.setattr(console, "err", lambda: terminal)
    play(progress.RunProgress(), make_cell, make_row, pause=0.6)
    text = out.getvalue()
    for expected in (
        "suite",
        "task 2/4 round 1/2",
        "decoding 10/30000 samples",
        "ok",
        "failed",
        "[bold]x",
        "2/2 cells",
    ):
        assert expected in text
