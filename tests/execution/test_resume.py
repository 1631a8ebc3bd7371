"""The promise of a resume, with real training: a killed worker's cell ends bit-equal to an uninterrupted one."""

import multiprocessing
import os
import random
import re
import signal
from contextlib import suppress

import pytest

from fcilbench.errors import CELLS_FAILED, OK
from fcilbench.execution.base import Progress, RunOptions
from fcilbench.execution.supervisor import run_plan
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.protocol import Limits, Partition, Protocol, Seeds

VIT = {"model": "vit_tiny_patch16_224", "weights": "none", "args": {"img_size": 16, "patch_size": 8, "depth": 1}}
ROUNDS, METHODS = 8, ("fedavg", "sum", "joint")
pytestmark = pytest.mark.slow


def make_cell(aggregator, retries=1):
    def use(name, **params):
        return PluginUse(name=f"fcilbench/{name}", label=name, version="1", params=params)

    return Cell(
        suite="resume",
        protocol=Protocol(clients=3, rounds=ROUNDS, local_epochs=1, lr=1e-3, participation=0.7),
        dataset=use("digits", train_per_class=6, test_per_class=2),
        tasks=(5, 5),
        backbone=use("timm", **VIT),
        partition=Partition(kind="dirichlet", value=0.5),
        aggregator=use(aggregator),
        stress=use("none"),
        seeds=Seeds(),
        limits=Limits(retries=retries),
    )


class KillAt(Progress):
    """Kills the worker when it reports a round."""

    def __init__(self, store, task, round_):
        self._store, self._at, self.kills = store, (task, round_), 0

    def cell_event(self, cell_id, event):
        if event["event"] == "round" and (event["task"], event["round"]) == self._at and not self.kills:
            self.kills += 1
            log = (self._store.cell_dir(cell_id) / "log.txt").read_text()
            os.kill(int(re.findall(r"process (\d+)$", log, flags=re.MULTILINE)[-1]), signal.SIGKILL)


def science(row):
    """What must not depend on how the cell was run."""
    counted = (row.cost.bytes_up, row.cost.bytes_down, row.cost.server_state)
    return row.status, row.model_digest, row.metrics, row.accuracy, row.seeds, row.test_sizes, row.classes, counted


@pytest.fixture(scope="module")
def straight(new_kit, tmp_path_factory):
    """The uninterrupted rows, of one worker."""
    kit = new_kit(tmp_path_factory.mktemp("straight"))
    plan = kit.plan(*map(make_cell, METHODS))
    assert run_plan(plan, kit.store, options=RunOptions(jobs=1)).exit_code == OK
    return {name: science(kit.row(name)) for name in METHODS}


def test_a_killed_worker_goes_on_and_ends_bit_equal(kit, straight):
    killer = KillAt(kit.store, 0, 1)
    assert run_plan(kit.plan(make_cell("sum")), kit.store, observers=[killer]).exit_code == OK
    row = kit.row("sum")
    assert killer.kills == 1
    assert row.attempts == 2
    assert science(row) == straight["sum"]
    assert [each["event"] for each in kit.store.rounds(kit.id("sum"))] == [*["round"] * ROUNDS, "task"] * 2


def test_the_next_run_resumes_what_this_one_gave_up(kit, straight):
    cell = make_cell("sum", retries=0)
    assert run_plan(kit.plan(cell), kit.store, observers=[KillAt(kit.store, 1, 0)]).exit_code == CELLS_FAILED
    assert kit.row("sum").status == "killed"
    events = Rounds()
    assert run_plan(kit.plan(cell), kit.store, observers=[events]).exit_code == OK
    assert (0, 0) not in events.seen  # it did not start over
    assert science(kit.row("sum")) == straight["sum"]


@pytest.mark.parametrize("executor", ["ray,address=local", "slurm,cluster=local"])
def test_the_executors_of_clusters_make_the_same_row(kit, straight, executor):
    pytest.importorskip("ray" if executor.startswith("ray") else "submitit")
    assert run_plan(kit.plan(make_cell("sum")), kit.store, options=RunOptions(executor)).exit_code == OK
    assert science(kit.row("sum")) == straight["sum"]


def supervise(kit, cell):
    """Starts a supervisor, in a process of its own, that goes on with the cell."""
    process = multiprocessing.get_context("fork").Process(target=run_plan, args=(kit.plan(cell), kit.store))
    process.start()
    return process


def test_20_random_kills_of_worker_and_supervisor_end_bit_equal(new_kit, straight, tmp_path):
    random_, cell, killed = random.Random(20261128), make_cell("sum", retries=100), new_kit(tmp_path / "0")
    supervisor, kills = supervise(killed, cell), {"worker": 0, "supervisor": 0}
    while sum(kills.values()) < 20:
        supervisor.join(random_.uniform(0.3, 3.7))
        if not supervisor.is_alive():  # it was done before the next kill: from the beginning
            assert science(killed.row("sum")) == straight["sum"]
            killed = new_kit(tmp_path / str(sum(kills.values())))
            supervisor = supervise(killed, cell)
            continue
        log = killed.folder("sum") / "log.txt"
        workers = re.findall(r"process (\d+)$", log.read_text(), flags=re.MULTILINE) if log.exists() else []
        victim = random_.choice(["worker", "supervisor"]) if workers else "supervisor"
        kills[victim] += 1
        with suppress(ProcessLookupError):
            os.kill(int(workers[-1]) if victim == "worker" else supervisor.pid, signal.SIGKILL)
        if victim == "supervisor":
            supervisor.join()
            supervisor = supervise(killed, cell)
    supervisor.join()
    assert min(kills.values()) > 3
    assert science(killed.row("sum")) == straight["sum"]


def test_two_jobs_make_the_rows_of_one(kit, straight):
    assert run_plan(kit.plan(*map(make_cell, METHODS)), kit.store, options=RunOptions(jobs=2)).exit_code == OK
    assert {name: science(kit.row(name)) for name in METHODS} == straight


class Rounds(Progress):
    """The rounds that were reported."""

    def __init__(self):
        self.seen: list[tuple[int, int]] = []

    def cell_event(self, cell_id, event):
        if event["event"] == "round":
            self.seen.append((event["task"], event["round"]))
