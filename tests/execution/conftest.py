import hashlib
import os
import sys
from pathlib import Path

import pytest

from fcilbench.execution.base import RunOptions
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.protocol import Limits, Partition, Protocol, Seeds
from fcilbench.suite.expand import Expansion
from fcilbench.suite.plan import Plan, PlanItem

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


class Kit:
    """Cells, plans and what a run leaves in its store."""

    def __init__(self, store):
        self.store = store

    def cell(self, name, script=("ok",), *, wall=None, retries=1):
        def use(kind):
            return PluginUse(name=f"fcilbench/{kind}", label=kind, version="1", code_digest="d")

        return Cell(
            suite="test",
            dataset=use("dataset"),
            backbone=use("backbone"),
            partition=Partition(kind="iid"),
            aggregator=PluginUse(name=f"fcilbench/{name}", label=name, version="1", params={"script": list(script)}),
            stress=use("none"),
            seeds=Seeds(),
            limits=Limits(wall_seconds=wall, retries=retries),
        )

    def science(self, name):
        """What of a row must not depend on how its cell was run."""
        row = self.row(name)
        counted = (row.cost.bytes_up, row.cost.bytes_down, row.cost.server_state)
        return row.status, row.model_digest, row.metrics, row.accuracy, row.seeds, row.test_sizes, row.classes, counted

    def id(self, name):
        return hashlib.sha256(name.encode()).hexdigest()

    def plan(self, *cells):
        known, ids = self.store.latest(), [self.id(cell.aggregator.label) for cell in cells]
        items = [PlanItem(cell, each, "new", row=known.get(each)) for cell, each in zip(cells, ids, strict=True)]
        return Plan(Expansion("test", list(cells)), items)

    def row(self, name):
        return self.store.latest()[self.id(name)]

    def folder(self, name):
        return self.store.cell_dir(self.id(name))

    def pids(self, name):
        return [int(pid) for pid in (self.folder(name) / "pids.txt").read_text().split()]

    def diary(self, name):
        return [int(line) for line in (self.folder(name) / "diary.txt").read_text().split()]


@pytest.fixture(scope="session")
def trained(put_small, tmp_path_factory):
    """Returns `trained(rounds)`: a cell of SUM that a real worker trains."""

    def make(rounds, retries=1):
        def use(name):
            return PluginUse(name=name, label=name.partition("/")[2], version="1")

        return Cell(
            suite="test",
            protocol=Protocol(clients=3, rounds=rounds, local_epochs=1, lr=1e-3, participation=0.7),
            dataset=use("small/stripes"),
            tasks=(2, 2),
            backbone=use("small/tiny-conv"),
            partition=Partition(kind="dirichlet", value=0.5),
            aggregator=use("fcilbench/sum"),
            stress=use("fcilbench/none"),
            seeds=Seeds(),
            limits=Limits(retries=retries),
        )

    site = str(put_small(tmp_path_factory.mktemp("small") / "site"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", site, prepend=os.pathsep)  # of nodes
        yield make


@pytest.fixture(scope="session")
def new_kit():
    return lambda folder: Kit(Store(folder))


@pytest.fixture
def kit(tmp_path):
    return Kit(Store(tmp_path / "results"))


@pytest.fixture
def options():
    return RunOptions(worker=(sys.executable, str(FAKE_WORKER)))
