import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.console import Console

from fcilbench.cli import console, progress
from fcilbench.cli.bars import shorten
from fcilbench.cli.progress import cell_name
from fcilbench.spec.events import standing
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


def test_a_name_that_is_too_long_keeps_its_place_and_its_seed():
    name = "cpu 0123456789ab digits/timm/iid/sum/none#0"
    assert shorten(name, 43) == name
    assert shorten(name, 24) == "cpu 01234567…/sum/none#0"
    assert [shorten(name, width) for width in (0, 1, 2, 3)] == ["", "…", "c…", "c…0"]


LONG = "a-label-of-a-method-that-is-much-longer-than-the-terminal-is-wide[lambda_s=0.25]"


def in_a_terminal(cli, columns, *arguments):
    """Returns what a process writes to a terminal of this many columns, without the codes that steer it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**cli.environment, "COLUMNS": str(columns), "TERM": "xterm"}
    command = [sys.executable, "-m", "fcilbench", *arguments]
    place = {"cwd": cli.folder, "env": environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    process, seen = subprocess.Popen(command, stderr=theirs, **place), b""
    os.close(theirs)
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert process.wait() == 0, seen
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.slow
def test_a_run_in_a_narrow_terminal_keeps_elapsed_time_and_time_left(cli):
    columns = 60
    cli.suite("tiny.yaml", ("[fedavg, acme]", f"[{{use: fedavg, label: '{LONG}'}}]"))
    text = in_a_terminal(cli, columns, "run", "tiny.yaml", "--tracking", "none", "--jobs", "1")
    bars = [each for each in re.split(r"[\r\n]+", text) if re.match(r"suite |cpu [0-9a-f]+…", each)]
    assert {each.split()[0] for each in bars} == {"suite", "cpu"}
    figures = re.compile(r" +\d+% \d:\d\d:\d\d (-:--:--|\d:\d\d:\d\d) ")
    assert [each for each in bars if not figures.search(each) or len(each) > columns] == []
    (name,) = {re.split("[━╺╸]", figures.split(each)[0])[0].strip() for each in bars if each.startswith("cpu")}
    assert re.fullmatch(r"cpu [0-9a-f]{4,}….*none#0", name)
