"""Factories shared by the rooms that handle cells and rows; no torch."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer

# Several workers of pytest-xdist, and the processes that they start, share the cores: a thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background makes them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from fcilbench.cli import console
from fcilbench.cli.main import app, main
from fcilbench.results.provenance import Provenance
from fcilbench.results.row import build_row
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.outcome import Cost, Outcome, Value
from fcilbench.spec.row import Failure, Row


def pytest_configure(config: pytest.Config) -> None:
    """Makes pytest-xdist hand out files in their order here, not those with the most tests first."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files with slow tests first, so that no worker starts one when the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROVENANCE = Provenance(
    environment={"python": "3.12.0", "worker": {}},
    env="sha256:" + "e" * 64,
    hardware_digest="sha256:" + "a" * 64,
    host_digest="sha256:" + "b" * 64,
    git_sha="c" * 40,
    dirty=False,
)


EVERYWHERE = ("none", "inferred", "oracle")
ROLES: dict[str, dict[str, str]] = {
    "fedavg": {"oracle": "control"},
    "joint": dict.fromkeys(EVERYWHERE, "reference"),
    **dict.fromkeys(("ncm", "ridge"), dict.fromkeys(EVERYWHERE, "control")),
}
"""What the built-ins declare."""


def _cell(
    aggregator: str = "fedavg",
    seed: int = 0,
    *,
    lambda_s: float | None = None,
    protocol: dict[str, Any] | None = None,
    evaluate: tuple[str, ...] = ("none", "oracle"),
    data: str = "sha256:data",
    base: int = 0,
    code: str = "k1",
    stress: str = "none",
) -> Cell:
    options = {} if lambda_s is None else {"lambda_s": lambda_s}

    def use(name: str, label: str, params: dict[str, Any], code_digest: str = "k0") -> PluginUse:
        return PluginUse(
            name=f"fcilbench/{name}", label=label, version="1", params=params, identity=params, code_digest=code_digest
        )

    return Cell.model_validate(
        {
            "suite": "demo",
            "protocol": {"rounds": 2, **(protocol or {})},
            "dataset": use("digits", "digits", {}),
            "tasks": (5, 5),
            "data_fingerprint": data,
            "backbone": use("timm", "vit", {"model": "vit_tiny"}),
            "partition": {"dirichlet": 0.5},
            "aggregator": use(aggregator, aggregator, options, code).model_copy(
                update={"roles": ROLES.get(aggregator, {})}
            ),
            "stress": use(stress, stress, {}),
            "seeds": {"index": seed, "base": base},
            "evaluate": {"task_identity": evaluate},
        }
    )


def _cell_id(cell: Cell) -> str:
    return sha256(cell.model_dump_json(exclude={"runtime", "limits"}).encode()).hexdigest()


def _outcome(
    metrics: dict[str, float | None],
    fingerprint: str = "sha256:data",
    accuracy: dict[str, list[list[float | None]]] | None = None,
    warnings: tuple[str, ...] = (),
) -> Outcome:
    return Outcome(
        metrics={
            name: Value(value=value, better="lower" if name.startswith("forgetting") else "higher")
            for name, value in metrics.items()
        },
        accuracy=accuracy or {},
        test_sizes=[10, 10],
        classes=[["0", "1"], ["2", "3"]],
        cost=Cost(
            wall_s=2.5, training_s=2.0, task_end_s=0.5, bytes_up=80, bytes_down=160, module=40, rounds=4, tasks=2
        ),
        seeds={"order": 11, "partition": 12, "train": 13},
        model_digest="d" * 64,
        data_fingerprint=fingerprint,
        device="cpu",
        warnings=list(warnings),
    )


@pytest.fixture
def make_cell() -> Callable[..., Cell]:
    """Returns `make_cell(aggregator, seed, ...)`."""
    return _cell


@pytest.fixture
def make_outcome() -> Callable[..., Outcome]:
    """Returns `make_outcome(metrics, fingerprint)`."""
    return _outcome


@pytest.fixture
def cell_id_of() -> Callable[[Cell], str]:
    """Returns an id that differs whenever two of these cells do; the real identity has tests of its own."""
    return _cell_id


@pytest.fixture
def make_row() -> Callable[..., Row]:
    """Returns `make_row(cell, metrics | status, ...)`: metrics make an `ok` row, a status another one."""

    def make(cell: Cell, result: dict[str, float | None] | str, minutes: int = 0, **changes: Any) -> Row:
        fields: dict[str, Any] = {"provenance": PROVENANCE, "started": STARTED}
        fields["ended"] = STARTED + timedelta(minutes=1 + minutes)
        of_outcome = {key: changes.pop(key) for key in ("fingerprint", "accuracy", "warnings") if key in changes}
        if isinstance(result, dict):
            outcome = _outcome(result, **of_outcome)
            return build_row(cell, _cell_id(cell), "ok", outcome, **{**fields, **changes})
        if result == "skipped":
            fields["skipped"] = "needs a text backbone"
        else:
            fields["failure"] = Failure(kind="plugin", type="ValueError", message="bad shape")
        return build_row(cell, _cell_id(cell), result, **{**fields, **changes})

    return make


@pytest.fixture(scope="session")
def put() -> Callable[..., Path]:
    """Returns `put(site, dist, files, entry_points)`: writes a distribution into a folder of packages, as pip would."""

    def make(
        site: Path, dist: str, files: Mapping[str, str], points: Mapping[str, Mapping[str, str]], version: str = "1.0"
    ) -> Path:
        for name, text in files.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        lines = []
        for kind, named in points.items():
            lines += [f"[fcilbench.{kind}]", *(f"{name} = {target}" for name, target in named.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        importlib.invalidate_caches()
        return site

    return make


@pytest.fixture(scope="session")
def put_small(put: Callable[..., Path]) -> Callable[[Path], Path]:
    """Returns `put_small(site)`: puts CONTRIBUTING.md's backbone and data set into a folder of packages.

    They import neither timm nor scikit-learn: each process that a test starts is ready in half the time.
    """
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code = "\n\n".join(block for block in blocks if "TinyConv" in block or "Stripes" in block)
    points = {"backbones": {"tiny-conv": "small_fcil:TinyConv"}, "datasets": {"stripes": "small_fcil:Stripes"}}
    return lambda site: put(site, "small", {"small_fcil.py": code}, points)


@pytest.fixture
def install(put: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Returns `install(dist, files, entry_points)`: puts a distribution on the search path of this process."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    yield lambda *what: put(site, *what)
    importlib.invalidate_caches()


SUITE = """\
fcilbench: 1
name: tiny
protocol: {clients: 2, rounds: 1, local_epochs: 1, augment: false}
grid:
  dataset: [{use: stripes, tasks: 2, train_per_class: 4, test_per_class: 2}]
  backbone:
    - {use: tiny-conv}
  partition: [iid]
  aggregator: [fedavg, acme]
  stress: [none]
seeds: 1
boards: [accuracy]
"""


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
def new_cli() -> type[Cli]:
    """Returns `Cli(folder, shared)`: `shared` holds installed packages in `site`, and the cache."""
    return Cli


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns `parse(line)`, which raises if a line of a document is no command with arguments that exist."""
    monkeypatch.setenv("FCILBENCH_DATA", "/data")  # a line with --data puts its own there

    def read(line: str) -> None:
        command, words = typer.main.get_command(app), shlex.split(line.partition(" > ")[0], comments=True)[1:]
        while words and hasattr(command, "commands"):
            command = command.commands[words.pop(0) if words[0] in command.commands else "start"]  # `tune SUITE`
        if words:
            command.make_context(line, words)

    return read
