import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    """Runs `fcilbench` in a real process in a folder of its own, with a third party's plugin installed."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder = folder
        self.done: subprocess.CompletedProcess[str] | None = None
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

    def suite(self, name: str, *changes: tuple[str, str]) -> Path:
        text = SUITE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = self.folder / name
        path.write_text(text)
        return path

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from fcilbench.cli.main import main; main()", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--format", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def files(self) -> set[str]:
        """What the commands have made here."""
        return {path.name for path in self.folder.iterdir() if path.name != "data" and path.suffix != ".yaml"}


@pytest.fixture(scope="session")
def shared(put: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One third-party package and one cache of plugins for all tests: filling it imports torch."""
    folder = tmp_path_factory.mktemp("shared")
    put(folder / "site", "acme", {"acme_fcil.py": PLUGIN}, POINTS)
    return folder


@pytest.fixture
def broken_site(put: Callable[..., Path], tmp_path: Path) -> Path:
    """A folder of packages whose only plugin cannot be imported."""
    source = "raise RuntimeError('needs a licence')"
    return put(tmp_path / "data" / "broken", "acme", {"acme_fcil.py": source}, POINTS)


@pytest.fixture
def cli(tmp_path: Path, shared: Path) -> Cli:
    return Cli(tmp_path, shared)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Cli:
    """A folder in which a suite has run: fedavg and sum ok, acme failed. Made once; tests only read it."""
    cli = Cli(tmp_path_factory.mktemp("finished"), shared)
    cli.suite("tiny.yaml", ("[fedavg, acme]", "[fedavg, sum, acme]"), ("seeds: 1", "runtime: {keep_model: true}"))
    cli.done = cli("run", "tiny.yaml", "--tracking", "none")
    return cli
