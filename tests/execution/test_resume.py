"""The promise of a resume, with real training: a killed worker's cell ends bit-equal to an uninterrupted one."""

import multiprocessing
import os
import random
import re
import signal
import time
from contextlib import suppress

import pytest

from fcilbench.errors import CELLS_FAILED, OK
from fcilbench.execution.base import RunDisplay
from fcilbench.execution.supervisor import run_plan

ROUNDS = 8
pytestmark = pytest.mark.slow


def newest_worker(folder):
    """Returns the process of the last attempt at a cell, by its log."""
    log = folder / "log.txt"
    pids = re.findall(r"process (\d+)$", log.read_text(), flags=re.MULTILINE) if log.exists() else []
    return int(pids[-1]) if pids else None


class Rounds(RunDisplay):
    """Notes the rounds that are reported, and kills the worker at some of them."""

    def __init__(self, store, *kills):
        self.store, self.kills, self.seen = store, list(kills), []

    def cell_event(self, cell_id, event):
        if event["event"] == "round":
            self.seen.append((event["task"], event["round"]))
            if self.seen[-1] in self.kills:
                self.kills.remove(self.seen[-1])
                os.kill(newest_worker(self.store.cell_dir(cell_id)), signal.SIGKILL)


@pytest.fixture(scope="module")
def straight(new_kit, trained, tmp_path_factory):
    """What an uninterrupted run ends with."""
    kit = new_kit(tmp_path_factory.mktemp("straight"))
    assert run_plan(kit.plan(trained(ROUNDS)), kit.store).exit_code == OK
    return kit.science("sum")


def test_a_killed_worker_goes_on_and_the_next_run_resumes_what_this_one_gave_up(kit, trained, straight):
    plan, killed, resumed = kit.plan(trained(ROUNDS)), Rounds(kit.store, (0, 1), (1, 0)), Rounds(kit.store)
    assert run_plan(plan, kit.store, observers=[killed]).exit_code == CELLS_FAILED
    assert (kit.row("sum").status, kit.row("sum").attempts, killed.kills) == ("killed", 2, [])
    assert run_plan(kit.plan(trained(ROUNDS)), kit.store, observers=[resumed]).exit_code == OK
    assert (0, 0) not in resumed.seen  # it did not start over
    assert killed.seen.count((0, 0)) == 1
    assert kit.row("sum").attempts == 3
    assert kit.science("sum") == straight
    assert [each["event"] for each in kit.store.rounds(kit.id("sum"))] == [*["round"] * ROUNDS, "task"] * 2


def supervise(kit, cell):
    """Starts a supervisor, in a process of its own, that goes on with the cell."""
    process = multiprocessing.get_context("fork").Process(target=run_plan, args=(kit.plan(cell), kit.store))
    process.start()
    return process


def test_random_kills_of_worker_and_supervisor_end_bit_equal(new_kit, trained, straight, tmp_path):
    """Each kill comes at a random time after a round that was trained since the kill before."""
    random_, cell = random.Random(20261128), trained(ROUNDS, retries=100)
    victims = random_.sample(["worker", "supervisor"] * 3, 6)
    killed, known = new_kit(tmp_path / "0"), 0
    supervisor = supervise(killed, cell)
    while victims:
        while supervisor.is_alive() and len(killed.store.rounds(killed.id("sum"))) <= known:
            time.sleep(0.01)
        supervisor.join(random_.uniform(0, 0.2))
        if not supervisor.is_alive():  # it was done before the next kill: from the beginning
            assert killed.science("sum") == straight
            killed, known = new_kit(tmp_path / str(len(victims))), 0
            supervisor = supervise(killed, cell)
            continue
        known = len(killed.store.rounds(killed.id("sum")))
        victim = victims.pop()
        with suppress(ProcessLookupError):
            os.kill(newest_worker(killed.folder("sum")) if victim == "worker" else supervisor.pid, signal.SIGKILL)
        if victim == "supervisor":
            supervisor.join()
            supervisor = supervise(killed, cell)
    supervisor.join()
    assert killed.science("sum") == straight
