"""Real processes that die: the supervisor by Ctrl-C and by kill -9, a worker by kill -9."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fcilbench.errors import INTERRUPTED, OK
from fcilbench.execution import lease
from fcilbench.execution.supervisor import run_plan

SUPERVISE = Path(__file__).with_name("supervise.py")


@pytest.fixture
def start(kit):
    started = []

    def run(*cells, jobs=1):
        started.append(subprocess.Popen([sys.executable, str(SUPERVISE), str(kit.store.root), str(jobs), *cells]))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def has_begun(kit, name):
    return (kit.folder(name) / "checkpoint.pt").exists


def gone(pid):
    """Whether a process is over; a zombie that nobody reaps counts as such."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_kill_of_a_worker_costs_its_cell_a_retry_and_nothing_else(kit, start):
    supervisor = start("a=rounds:8:0.1", "b=rounds:12:0.1", jobs=2)
    wait_for(lambda: has_begun(kit, "a")() and has_begun(kit, "b")())
    os.kill(kit.pids("a")[0], signal.SIGKILL)
    assert supervisor.wait(60) == OK
    assert kit.diary("a") == list(range(8))
    assert kit.diary("b") == list(range(12))
    assert len(kit.pids("a")) == 2
    assert len(kit.pids("b")) == 1
    assert kit.row("a").attempts == 2


def test_ctrl_c_leaves_interrupted_rows_and_a_resumable_state(kit, start):
    cells = ["a=rounds:8:0.1", "b=rounds:2:0"]
    supervisor = start(*cells)
    wait_for(has_begun(kit, "a"))
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(60) == INTERRUPTED
    assert {name: kit.row(name).status for name in "ab"} == {"a": "interrupted", "b": "interrupted"}
    assert [kit.row(name).attempts for name in "ab"] == [1, 0]
    assert gone(kit.pids("a")[0])
    assert not list(kit.store.root.glob("cells/*/lease.json"))
    assert start(*cells).wait(60) == OK
    assert kit.diary("a") == list(range(8))
    assert kit.row("a").attempts == 2


def test_kill_of_the_supervisor_ends_its_workers_and_the_next_run_takes_over(kit, start):
    cells = ["a=rounds:8:0.1", "b=rounds:2:0"]
    supervisor = start(*cells)
    wait_for(has_begun(kit, "a"))
    owner = lease.read(kit.folder("a"))
    assert owner.pid == supervisor.pid
    assert lease.living_owner(kit.folder("a")) == owner
    supervisor.kill()  # SIGKILL: no handler, no clean-up; not reaped, so it stays a zombie for now
    worker = kit.pids("a")[0]
    wait_for(lambda: gone(worker))
    assert lease.read(kit.folder("a")) is not None
    wait_for(lambda: lease.living_owner(kit.folder("a")) is None)
    assert start(*cells).wait(60) == OK
    assert kit.diary("a") == list(range(8))
    assert {kit.row(name).status for name in "ab"} == {"ok"}
    assert [kit.row(name).attempts for name in "ab"] == [2, 1]
    assert not list(kit.store.root.glob("cells/*/lease.json"))


@pytest.mark.parametrize("killed", [False, True])
def test_two_runs_share_a_store_and_each_waits_for_the_other(kit, start, killed):
    """Repeats two runs that both said exit 3 of a store where every cell was ok; one that dies leaves its cells."""
    cells = [f"c{number}=rounds:1:0.2" for number in range(4)]
    first = start(*cells)
    wait_for(has_begun(kit, "c0"))
    second = start(*reversed(cells))
    wait_for((kit.folder("c3") / "pids.txt").exists)  # its checkpoint may be gone by now
    if killed:
        first.kill()
    assert first.wait(60) == (-signal.SIGKILL if killed else OK)
    assert second.wait(60) == OK
    assert {kit.row(f"c{number}").status for number in range(4)} == {"ok"}
    assert killed or [len(kit.pids(f"c{number}")) for number in range(4)] == [1, 1, 1, 1]


def test_g7_what_a_worker_started_in_a_session_of_its_own_dies_with_it(kit, options):
    run_plan(kit.plan(kit.cell("a", ["daemon"], retries=0)), kit.store, options=options)
    assert kit.row("a").status == "killed"
    daemon = int((kit.folder("a") / "daemon.txt").read_text())
    wait_for(lambda: gone(daemon))
