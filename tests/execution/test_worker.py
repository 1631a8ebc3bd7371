"""The real worker, with a real small experiment: what it says, where prints go, and how each end is named."""

import os
import time
from pathlib import Path

import pytest

from fcilbench.execution.base import Job
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.outcome import Outcome
from fcilbench.spec.protocol import Partition, Protocol, Seeds
from fcilbench.worker.events import TERMINAL, Event
from fcilbench.worker.process import WorkerProcess

VIT = {"model": "vit_tiny_patch16_224", "weights": "none", "args": {"img_size": 16, "patch_size": 8, "depth": 1}}
pytestmark = pytest.mark.slow


def make_cell(do="", **dataset):
    def use(name, **params):
        return PluginUse(name=name, label=name, version="1", params=params)

    return Cell(
        protocol=Protocol(clients=2, rounds=1, local_epochs=1, augment=False),
        dataset=use("fcilbench/digits", train_per_class=4, test_per_class=2) if not dataset else use(**dataset),
        tasks=(5, 5),
        backbone=use("fcilbench/timm", **VIT),
        partition=Partition(kind="iid"),
        aggregator=use("acme/acme", do=do) if do else use("fcilbench/fedavg"),
        stress=use("fcilbench/none"),
        seeds=Seeds(),
    )


@pytest.fixture(scope="module")
def environment(put, tmp_path_factory):
    """The environment of a worker that has the third party's package installed."""
    evil = (Path(__file__).parents[1] / "hostile" / "evil.py").read_text()
    site = put(tmp_path_factory.mktemp("site"), "acme", {"evil.py": evil}, {"aggregators": {"acme": "evil:Evil"}})
    return {**os.environ, "PYTHONPATH": str(site), "FCILBENCH_DATA": str(site), "CUDA_VISIBLE_DEVICES": ""}


class Worker:
    """A worker process and what it has said."""

    def __init__(self, environment, folder):
        self.child = WorkerProcess(environment)
        self.folder = folder
        self.events: list[Event] = []

    def wait(self, token, seconds=120.0):
        deadline = time.monotonic() + seconds
        while True:
            self.events += self.child.receive(token)
            if self.events and self.events[-1]["event"] in TERMINAL:
                return self.events[-1]
            assert time.monotonic() < deadline, f"the worker said only {self.events}"
            time.sleep(0.02)

    def run(self, name, cell, **options):
        self.events = []
        workdir = self.folder / name
        workdir.mkdir()
        fields = cell.model_dump(mode="json") if isinstance(cell, Cell) else cell
        self.child.send(Job(fields, name, str(workdir), token=name, **options).request)
        return self.wait(name), workdir


@pytest.fixture(scope="module")
def worker(environment, tmp_path_factory):
    worker = Worker(environment, tmp_path_factory.mktemp("cells"))
    yield worker
    worker.child.close()


def test_one_process_runs_cell_after_cell(worker):
    finished, workdir = worker.run("first", make_cell())
    assert finished["event"] == "finished", finished
    first = Outcome.model_validate(finished["outcome"])
    assert first.test_sizes == [10, 10]
    kinds = [event["event"] for event in worker.events]
    assert kinds[:2] == ["ready", "started"]
    assert set(worker.events[0]["environment"]) >= {"torch", "cuda", "gpu"}
    assert kinds.count("round") == 2
    assert (workdir / "log.txt").read_text().startswith("--- ")
    assert (workdir / "rounds.jsonl").is_file()
    again, _ = worker.run("again", make_cell())
    second = Outcome.model_validate(again["outcome"])
    assert second.model_digest == first.model_digest
    assert second.accuracy == first.accuracy


def test_what_plugins_print_goes_to_the_log_of_the_cell(worker):
    for name in ("print", "after-close"):
        finished, workdir = worker.run(name, make_cell("print"))
        assert "outcome" in finished
        log = (workdir / "log.txt").read_text()
        for text in ("from python\n", '{"event": "finished"}\n', "from a child\n", "to standard error\n"):
            assert text in log
        if name == "print":
            assert worker.run("close", make_cell("close"))[0]["type"] == "OSError"  # it closes standard output
    assert "from python" not in (worker.folder / "first" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("do", "event"),
    [
        ("raise", {"event": "failed", "kind": "plugin", "type": "ValueError"}),
        ("exit", {"event": "failed", "kind": "plugin", "type": "SystemExit"}),
        ("memory", {"event": "oom", "type": "RuntimeError"}),
        ("cpu_memory", {"event": "oom", "type": "RuntimeError"}),
        ("nan", {"event": "failed", "kind": "plugin", "type": "PluginError"}),
        ("log", {"event": "failed", "kind": "plugin", "type": "PluginError"}),
        ("refuse", {"event": "skipped", "reason": "needs text"}),
    ],
)
def test_every_end_has_its_name(worker, do, event):
    said, workdir = worker.run(do, make_cell(do))
    assert event.items() <= said.items()
    words = {"raise": "no\ngood (evil.py:34 in aggregate)", "exit": "0 (evil.py:36 in aggregate)"}
    words |= {"nan": "not finite", "log": "more than 16 MiB"}
    assert words.get(do, "") in said.get("message", "")
    assert (workdir / "traceback.txt").exists() == (do != "refuse")
    if do == "raise":
        assert "ValueError: no" in (workdir / "traceback.txt").read_text()
        assert "ValueError: no" in (workdir / "log.txt").read_text()


def test_what_is_not_the_methods_fault_is_told_apart(worker):
    said, _ = worker.run("missing", make_cell(name="fcilbench/cifar100"))
    assert (said["event"], said["kind"]) == ("failed", "prerequisite")
    said, _ = worker.run("nonsense", {"dataset": 3})
    assert (said["event"], said["kind"], said["type"]) == ("failed", "internal", "ValidationError")
    said, _ = worker.run("fetch", make_cell("fetch"), offline=True)
    assert (said["event"], said["kind"]) == ("failed", "prerequisite")
    assert said["message"] == "offline: connection to example.invalid refused"


def test_a_segmentation_fault_leaves_its_stack_in_the_log(environment, tmp_path):
    worker = Worker(environment, tmp_path)
    said, workdir = worker.run("crash", make_cell("crash"))
    worker.child.close()
    assert (said["event"], said["type"]) == ("died", "SIGSEGV")
    assert "Fatal Python error: Segmentation fault" in (workdir / "log.txt").read_text()


def test_an_orphan_ends_by_itself(environment):
    worker = Worker(environment, Path())
    os.close(worker.child._requests)
    deadline = time.monotonic() + 10
    while worker.child.death() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker.child._requests = os.open(os.devnull, os.O_WRONLY)
    worker.child.close()
