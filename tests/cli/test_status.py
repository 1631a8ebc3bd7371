"""`fcilbench status` beside real runs: one that is killed and resumed, and two at a time in one folder."""

import json
import os
import signal
import time

import pytest

pytestmark = pytest.mark.slow


def counts(cli, **expected):
    """Looks until the folder has these counts; returns the last look."""
    end = time.monotonic() + 240
    while True:
        done = cli("status", "--format", "json")
        found = json.loads(done.stdout) if done.stdout else {"counts": {}}
        if {name: number for name, number in found["counts"].items() if number} == expected:
            return {**found, "exit": done.returncode}
        assert time.monotonic() < end, found
        time.sleep(1)  # each look is a process, which takes time from the runs


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_run_that_is_killed_resumed_and_shared(cli):
    """fedavg ends, acme sleeps until its run is killed; then each of two runs trains one seed of it."""
    run = ("run", "tiny.yaml", "-s", "seeds=2", "--tracking", "none", "--jobs", "1")
    first = cli.start(*run, "--only", "seed:0", ACME="sleep")
    found = counts(cli, done=1, running=1)
    assert (found["exit"], found["waiting_known"], len(found["machines"])) == (0, True, 1)
    assert [(each["coords"]["aggregator"], each["suite"]) for each in found["running"]] == [("acme", "tiny")]
    assert found["running"][0]["owner"] == f"process {first.pid} on this host"
    assert found["cells_an_hour"] > 0
    assert found["machines"][0]["cells_an_hour"] == pytest.approx(found["cells_an_hour"])
    assert found["seconds_left"] is not None
    kill(first)
    found = counts(cli, done=1, waiting=1)  # seed 1 was not selected
    assert (found["exit"], [each["coords"]["aggregator"] for each in found["waiting"]]) == (3, ["acme"])
    text = cli("status").stdout
    assert text.startswith("done 1   waiting 1\n")
    assert "nothing runs now: the same `fcilbench run` continues" in text

    both = [cli.start(*run, "--only", f"seed:{seed}", ACME="sleep") for seed in (0, 1)]
    found = counts(cli, done=2, running=2)
    assert {each["owner"] for each in found["running"]} == {f"process {each.pid} on this host" for each in both}
    watch = cli.start("status", "--watch")
    time.sleep(4)
    assert watch.poll() is None  # something runs
    for each in both:
        kill(each)
    out, err = watch.communicate(timeout=120)
    assert (watch.returncode, out.splitlines()[0], err) == (3, "done 2   waiting 2", "")

    assert cli(*run).returncode == 3  # acme raises
    found = counts(cli, done=2, failed=2)
    assert (found["exit"], found["seconds_left"], found["running"]) == (3, None, [])
    assert {each["method"]: (each["done"], each["failed"]) for each in found["methods"]} == {
        "acme": (0, 2),
        "fedavg": (2, 0),
    }
    assert len((cli.folder / "results" / "runs.jsonl").read_text().splitlines()) == 2  # one for each seed


def test_a_folder_without_notes_says_that_what_waits_is_not_known(finished, cli):
    finished_cli = finished
    assert finished_cli("status", "--out", "nothing").returncode == 2
    (finished_cli.folder / "empty").mkdir(exist_ok=True)
    assert finished_cli("status", "--out", "empty").returncode == 4
    assert finished_cli("results", "merge", "results", "--out", "copy").returncode == 0
    done = finished_cli("status", "--out", "copy")
    assert done.returncode == 3  # one of its three cells failed
    assert "which cells wait is not known" in done.stdout
    assert "not known" not in finished_cli("status").stdout
    watched = finished_cli("status", "--watch", "--format", "csv")
    assert watched.stdout.splitlines()[0] == "method,done,running,failed,skipped,waiting,mean_seconds"


def test_torch_is_not_imported(finished):
    code = (
        "import sys; from fcilbench.cli.main import main\ntry:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    )
    out, _ = finished.start("status", code=code).communicate()
    assert out.splitlines()[-1] == "False"
