import shutil

import pytest

PLUGIN = """\
import os, time
from fcilbench.plugins.aggregators.fedavg import FedAvg
class Acme(FedAvg):
    "Raises, or sleeps, when it should aggregate."
    version = "1"
    role = "control"
    def aggregate(self, updates, server):
        if os.environ.get("ACME") == "sleep":
            time.sleep(600)
        raise ValueError("no good")
"""


POINTS = {"aggregators": {"acme": "acme_fcil:Acme"}}


@pytest.fixture(scope="session")
def shared(put, put_small, tmp_path_factory):
    """Two third-party packages and one cache of plugins for all tests: filling it imports torch."""
    folder = tmp_path_factory.mktemp("shared")
    put(put_small(folder / "site"), "acme", {"acme_fcil.py": PLUGIN}, POINTS)
    return folder


@pytest.fixture(scope="session")
def unusable(put, put_small, shared):
    """A folder of packages with a plugin that cannot be imported, and without Ray."""
    site = put_small(shared / "unusable")
    put(site, "acme", {"acme_fcil.py": "raise RuntimeError('needs a licence')"}, POINTS)
    (site / "ray.py").write_text("raise ImportError('no ray')")  # stands before an installed one
    return str(site)


@pytest.fixture
def cli(new_cli, shared):
    """A fresh folder, always of the same name: what is known of a plugin with options depends on the folder."""
    folder = shared / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return new_cli(folder, shared)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, new_cli, shared):
    """A folder in which a suite has run: fedavg and sum ok, acme failed. Made once; tests only read it."""
    cli = new_cli(tmp_path_factory.mktemp("finished"), shared)
    large = ("{use: tiny-conv}", "{use: tiny-conv, channels: 64}")
    methods = ("[fedavg, acme]", "[fedavg, sum, acme]")
    cli.suite("tiny.yaml", large, methods, ("seeds: 1", "runtime: {keep_model: true}"))
    cli.done = cli("run", "tiny.yaml", "--tracking", "none", "--jobs", "1")  # one process trains fedavg and sum
    return cli
