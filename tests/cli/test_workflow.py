"""Plan, train and reproduce as functions: they return values, print nothing, and tell what they do to their screen."""

import re
import subprocess
import sys

import pytest

from fcilbench.errors import NothingSelectedError, PrerequisiteError
from fcilbench.execution import lease
from fcilbench.pages.pack import unpacked
from fcilbench.results.store import Store
from fcilbench.workflow import again, train
from fcilbench.workflow.screen import Screen

pytestmark = pytest.mark.slow


@pytest.fixture
def suite(cli, monkeypatch):
    """The path of a suite of one cell, in an environment like that of a process."""
    cli.suite("tiny.yaml", ("[fedavg, acme]", "[fedavg]"))
    for name, value in cli.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(cli.environment["PYTHONPATH"])
    monkeypatch.chdir(cli.folder)
    return cli.folder / "tiny.yaml"


def test_a_workflow_returns_values_and_prints_nothing(suite, capfd):
    said, hours, out = list[str](), list[float](), suite.parent / "out"
    screen = Screen(said.append, said.append)
    run = train.run(suite, out, jobs=1, tracking="none", screen=screen, before=hours.append)
    (row,) = run.summary.rows.values()
    assert (run.exit_code, row.status, [board.board for board in run.boards]) == (0, "ok", ["accuracy"])
    assert said[0].startswith("tiny: 1 dataset x 1 backbone x 1 partition x 1 aggregator")
    assert len(hours) == 1
    assert (out / "report.html").is_file()
    done = again.reproduce(Store(out), row, suite.parent / "again", screen=screen)
    assert (done.verdict, done.problem, done.broken_off) == ("equal to the bit", "", 0)
    assert done.here is not None
    assert done.here.model_digest == row.model_digest
    shown = list[str]()
    verified = again.verify(out, suite.parent / "again", sample=1, screen=screen, show=shown.append)
    assert (verified.rows, [each.row.cell_id for each in verified.trained]) == (1, [row.cell_id])
    assert [f"{Store(out).rows_path}:{number}: {text}" for number, text in verified.problems] == shown
    with pytest.raises(NothingSelectedError):
        train.run(suite, out, only=["aggregator:sum"])
    assert capfd.readouterr() == ("", "")


def test_a_part_of_a_suite_and_a_cell_that_another_run_trains(suite):
    """The report has what `--only` left out, and an old row of a cell in training reproduces nothing."""
    suite.write_text(suite.read_text().replace("[fedavg]", "[fedavg, ncm]"))
    out = suite.parent / "out"
    train.run(suite, out, only=["aggregator:ncm"], tracking="none")
    run = train.run(suite, out, only=["aggregator:fedavg"], tracking="none")
    assert [entry.aggregator for entry in run.boards[0].blocks[0].entries] == ["fedavg"]
    (data,) = re.findall('(?<=id="data">)[^<]*', (out / "report.html").read_text(encoding="utf-8"))
    assert all(f'"{name}"' in unpacked(data) for name in ("fedavg", "ncm"))
    (row,) = run.summary.rows.values()
    held = lease.acquire(Store(out).cell_dir(row.cell_id))
    with pytest.raises(PrerequisiteError, match="is running elsewhere: process"):
        again.reproduce(Store(out), row, out)
    held.release()


def test_what_a_notebook_calls_imports_no_typer():
    names = "fcilbench.cli.terminal, fcilbench.workflow.train, fcilbench.workflow.again, fcilbench.workflow.studies"
    script = f"import sys, {names}; sys.exit('typer' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_rows_say_what_their_methods_declare_to_be(finished):
    """The third party's plugin declares a control; its row says so, with and without the plugin."""
    roles = {row["coords"]["aggregator"]: row["roles"] for row in finished.json("show")["rows"]}
    everywhere = dict.fromkeys(("none", "inferred", "oracle"), "control")
    assert roles == {"fedavg": {"oracle": "control"}, "sum": {}, "acme": everywhere}
