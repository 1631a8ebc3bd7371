"""The wheel, built and installed by itself, runs shipped suites and boards in a folder that holds nothing."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fcilbench
from fcilbench.shipped import folder, located, named
from fcilbench.suite.load import load_suite
from fcilbench.suite.yaml import InvalidSuiteError

ROOT = Path(__file__).parents[1]
WEIGHTS = "vit_tiny_patch8_64.tiny_imagenet.safetensors"
PARTS = ("fcilbench", "suites", "leaderboards", "weights", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def test_a_path_of_the_user_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "quickstart.yaml", "suites/quickstart.yaml"):
        assert located(Path(name), "suites", ".yaml") == folder("suites") / "quickstart.yaml"
    assert located(Path("leaderboards/quickstart"), "leaderboards") == folder("leaderboards") / "quickstart"
    assert named(Path(WEIGHTS), "weights") == folder("weights") / WEIGHTS
    for name in ("nothing", "../quickstart", str(tmp_path / "quickstart"), "x" * 5000, "a\0b"):
        assert located(Path(name), "suites", ".yaml") == Path(name)
    with pytest.raises(
        InvalidSuiteError, match=r"suite quickstrat does not exist \(did you mean 'quickstart.yaml'\?\)"
    ):
        load_suite("quickstrat")
    (tmp_path / "quickstart").write_text("mine")
    assert located(Path("quickstart"), "suites", ".yaml") == Path("quickstart")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the unpacked wheel, built from a copy of what git tracks of the package."""
    base = tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, base / part)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        base / "out",
        base,
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (base / "out").glob(f"fcilbench-{fcilbench.__version__}-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(base / "site")
    return base / "site"


def run(site, folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(site), "FCILBENCH_CACHE": str(folder / "cache"), "COLUMNS": "120"}
    command = [sys.executable, "-m", "fcilbench", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_wheel_holds_suites_boards_and_weights(installed, tmp_path):
    where = [
        sys.executable,
        "-c",
        "import fcilbench, fcilbench.shipped as s; print(fcilbench.__file__, s.folder('weights'))",
    ]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.split() == [str(installed / "fcilbench" / part) for part in ("__init__.py", "shipped_files/weights")]
    planned = run(installed, tmp_path, "plan", "quickstart")
    assert planned.returncode == 0, planned.stderr
    assert "12" in planned.stdout
    checked = run(installed, tmp_path, "check", "small-vision")
    assert WEIGHTS not in checked.stdout + checked.stderr  # the weights are there; the data may not be
    done = run(
        installed, tmp_path, "run", "quickstart", "--only", "aggregator:ncm,seed:0", "--jobs", "1", "--gpus", "none"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "rows.jsonl").read_text().count("\n") == 1
    merged = run(installed, tmp_path, "results", "merge", "leaderboards/quickstart", "--out", "all")
    assert merged.returncode == 0, merged.stderr
    (tmp_path / "mine.yaml").write_text("fcilbench: 1\nname: mine\nextends: suites/quickstart.yaml\nseeds: 1\n")
    mine = run(installed, tmp_path, "plan", "mine.yaml", "--out", "all")
    assert mine.returncode == 0, mine.stderr
