import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from fcilbench.cli import console
from fcilbench.cli.console import duration
from fcilbench.cli.progress import Display, RunProgress, cell_name, fraction, where
from fcilbench.execution.base import Handle

ROUND = {"event": "round", "task": 1, "tasks": 4, "round": 0, "rounds": 2, "loss": 0.41234}


@pytest.mark.parametrize(
    ("event", "share"),
    [
        ({"event": "phase", "task": 0, "tasks": 4}, 0.0),
        (ROUND, (1 + 1 / 2) / 4),
        ({"event": "round", "task": 3, "tasks": 4, "round": 1, "rounds": 2}, 1.0),
        ({"event": "task", "task": 1, "tasks": 4}, 0.5),
        ({"event": "log", "text": "hello"}, None),
    ],
)
def test_fraction_of_a_cell(event: dict[str, Any], share: float | None) -> None:
    assert fraction(event) == share


def test_texts() -> None:
    assert where(ROUND) == "task 2/4 round 1/2 loss 0.412"
    assert where({**ROUND, "loss": None}) == "task 2/4 round 1/2"
    assert cell_name({"dataset": "digits", "aggregator": "sum", "seed": 3}) == "digits/sum#3"
    assert [duration(value) for value in (0.25, 42.4, 125, 3725)] == ["0.2 s", "42 s", "2 min 05 s", "1h02"]


def play(progress: Any, make_cell: Callable[..., Any], make_row: Callable[..., Any], pause: float = 0.0) -> None:
    """Two cells: one is killed, retried and ok; the other fails."""
    slot, cell = Handle("t", "cpu"), make_cell("sum")
    progress.run_started(2, ["cpu"])
    progress.cell_started(slot, cell, "a" * 64, 1)
    progress.cell_event(slot, "a" * 64, {"event": "phase", "task": 0, "tasks": 4})
    progress.cell_event(slot, "a" * 64, ROUND)
    progress.cell_retried(slot, cell, "a" * 64, "the worker died of SIGKILL")
    progress.cell_started(slot, cell, "a" * 64, 2)
    progress.cell_event(slot, "a" * 64, ROUND)
    time.sleep(pause)  # bars are drawn four times a second
    progress.note("cell [bold]x is left to process 1")
    progress.cell_finished(slot, make_row(cell, {"faa/none": 0.6}))
    progress.cell_finished(None, make_row(make_cell("fedavg"), "failed"))
    progress.run_finished()


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    console.err.cache_clear()
    yield
    console.err.cache_clear()


def test_plain_lines(make_cell: Callable[..., Any], make_row: Callable[..., Any], capsys: Any) -> None:
    clock = iter(range(0, 1000, 40))
    play(RunProgress(Display(bars=False), lambda: float(next(clock))), make_cell, make_row)
    lines = lines_of(capsys)
    assert lines[0] == "running 2 cells in 1 slot on cpu"
    assert lines[1].startswith("start cpu aaaaaaaaaaaa ")
    assert lines[2].endswith("task 2/4 round 1/2 loss 0.412")
    assert lines[3].startswith("retry cpu aaaaaaaaaaaa")
    assert lines[4].endswith("(attempt 2)")
    assert lines[6] == "cell [bold]x is left to process 1"
    assert lines[7].startswith("[1/2] ok ")
    assert lines[8].startswith("[2/2] failed ")


def test_rounds_are_not_told_too_often(make_cell: Callable[..., Any], capsys: Any) -> None:
    times = iter([0.0, 10.0, 31.0, 31.0, 40.0])
    progress = RunProgress(Display(bars=False), lambda: next(times))
    progress.cell_started(Handle("t", "cpu"), make_cell("sum"), "a" * 64, 1)
    for _ in range(3):
        progress.cell_event(Handle("t", "cpu"), "a" * 64, ROUND)
    assert len(lines_of(capsys)) == 2


def test_live_bars(make_cell: Callable[..., Any], make_row: Callable[..., Any], monkeypatch: Any) -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=160, highlight=False)
    monkeypatch.setattr(console, "err", lambda: terminal)
    play(RunProgress(), make_cell, make_row, pause=0.6)
    progress = RunProgress()
    progress.run_started(1, ["cpu"])
    progress.cell_started(Handle("t", "cpu"), make_cell("sum"), "a" * 64, 1)
    progress.cell_event(Handle("t", "cpu"), "a" * 64, {"event": "decoding", "done": 10, "total": 30000})
    time.sleep(0.6)
    progress.run_finished()
    text = out.getvalue()
    for expected in (
        "suite",
        "task 2/4 round 1/2 loss 0.412",
        "decoding 10/30000 samples",
        "ok",
        "failed",
        "cell [bold]x",
        "2/2 cells",
    ):
        assert expected in text
