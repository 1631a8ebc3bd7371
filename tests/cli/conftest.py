import contextlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from unittest.mock import patch

import pytest

from fcilbench.cli import console
from fcilbench.cli.main import main

SUITE = """\
fcilbench: 1
name: tiny
protocol: {clients: 2, rounds: 1, local_epochs: 1, augment: false}
grid:
  dataset: [{use: digits, tasks: 2, train_per_class: 4, test_per_class: 2}]
  backbone:
    - {use: timm, model: vit_tiny_patch16_224, weights: none, args: {img_size: 16, patch_size: 8, depth: 1}}
  partition: [iid]
  aggregator: [fedavg, acme]
  stress: [none]
seeds: 1
boards: [accuracy]
"""

PLUGIN = """\
import os, time
from fcilbench.plugins.aggregators.fedavg import FedAvg
class Acme(FedAvg):
    "Raises, or sleeps, when it should aggregate."
    version = "1"
    def aggregate(self, updates, server):
        if os.environ.get("ACME") == "sleep":
            time.sleep(600)
        raise ValueError("no good")
"""


POINTS = {"aggregators": {"acme": "acme_fcil:Acme"}}


class Cli:
    """The command line in a folder of its own, with a third party's plugin installed: called in this process, which
    saves its imports, or started as a process that can be killed."""

    def __init__(self, folder, shared):
        self.folder = folder
        self.done = None
        self.suite("tiny.yaml")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FCILBENCH_", "MLFLOW_"))}
        self.environment = {
            **kept,
            "PYTHONPATH": str(shared / "site"),
            "FCILBENCH_CACHE": str(shared / "cache"),
            "FCILBENCH_DATA": str(folder / "data"),
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "120",
        }

    def suite(self, name, *changes):
        text = SUITE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (self.folder / name).write_text(text)

    def start(self, *arguments, code="from fcilbench.cli.main import main; main()", **environment):
        """Starts a process; `code` is what it runs."""
        place = {"cwd": self.folder, "env": {**self.environment, **environment}, "stdin": subprocess.DEVNULL}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", code, *arguments], **place, **pipes)

    def __call__(self, *arguments, **environment):
        """Returns the exit code and the two outputs of a command."""
        out, err, code = io.StringIO(), io.StringIO(), 0
        variables = {**self.environment, **environment}
        sites = variables.pop("PYTHONPATH").split(os.pathsep)
        console.err.cache_clear()
        with (
            patch.dict(os.environ, variables, clear=True),
            patch.object(sys, "path", [*sites, *sys.path]),
            patch.object(sys, "argv", ["fcilbench", *arguments]),
            patch.object(console, "state", console.State()),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            importlib.invalidate_caches()
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def json(self, *arguments):
        done = self(*arguments, "--format", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def files(self):
        """What the commands have made here."""
        return {path.name for path in self.folder.iterdir() if path.name != "data" and path.suffix != ".yaml"}


@pytest.fixture(scope="session")
def shared(put, tmp_path_factory):
    """One third-party package and one cache of plugins for all tests: filling it imports torch."""
    folder = tmp_path_factory.mktemp("shared")
    put(folder / "site", "acme", {"acme_fcil.py": PLUGIN}, POINTS)
    return folder


@pytest.fixture
def broken_site(put, tmp_path):
    """A folder of packages whose only plugin cannot be imported."""
    return put(tmp_path / "broken", "acme", {"acme_fcil.py": "raise RuntimeError('needs a licence')"}, POINTS)


@pytest.fixture
def cli(shared):
    """A fresh folder, always of the same name: what is known of a plugin with options depends on the folder."""
    folder = shared / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return Cli(folder, shared)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, shared):
    """A folder in which a suite has run: fedavg and sum ok, acme failed. Made once; tests only read it."""
    cli = Cli(tmp_path_factory.mktemp("finished"), shared)
    cli.suite("tiny.yaml", ("[fedavg, acme]", "[fedavg, sum, acme]"), ("seeds: 1", "runtime: {keep_model: true}"))
    cli.done = cli("run", "tiny.yaml", "--tracking", "none", "--jobs", "1")  # one process trains fedavg and sum
    return cli
