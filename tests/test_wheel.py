"""The wheel, built and installed by itself, runs shipped suites and boards in a folder that holds nothing."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
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
def wheel(tmp_path_factory):
    """The wheel, built from a copy of what git tracks of the package."""
    base = tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, base / part)
    call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", base / "out", base)
    (found,) = (base / "out").glob(f"fcilbench-{fcilbench.__version__}-py3-none-any.whl")
    return found


@pytest.fixture(scope="module")
def program(wheel, tmp_path_factory):
    """The command in a virtual environment into which the wheel was installed; its dependencies are those of here."""
    folder_ = tmp_path_factory.mktemp("venv")
    call(sys.executable, "-m", "venv", "--without-pip", folder_)
    python = folder_ / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder_), "platbase": str(folder_)})
    others = [each for each in sys.path if each.endswith("-packages")]
    Path(packages, "dependencies.pth").write_text("\n".join(others) + "\n")  # after what is installed there itself
    return folder_ / "bin" / "fcilbench"


def call(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(program, folder, *arguments):
    environment = {**os.environ, "FCILBENCH_CACHE": str(folder / "cache"), "COLUMNS": "120"}
    environment.pop("PYTHONPATH", None)
    command = [program, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_wheel_holds_suites_boards_and_weights(program, tmp_path):
    where = "import fcilbench, fcilbench.shipped as s; print(fcilbench.__file__, s.folder('weights'))"
    command = [program.parent / "python", "-c", where]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    site = next(program.parents[1].glob("lib/python3*/site-packages"))
    assert found.split() == [str(site / "fcilbench" / part) for part in ("__init__.py", "shipped_files/weights")]
    assert run(program, tmp_path, "--version").stdout == f"fcilbench {fcilbench.__version__}\n"
    assert (site / "fcilbench" / "shipped_files" / "suites" / "schema.json").is_file()
    planned = run(program, tmp_path, "plan", "quickstart")
    assert planned.returncode == 0, planned.stderr
    assert "12" in planned.stdout
    checked = run(program, tmp_path, "check", "small-vision")
    assert WEIGHTS not in checked.stdout + checked.stderr  # the weights are there; the data may not be
    one = ("--only", "aggregator:ncm,seed:0", "--jobs", "1", "--gpus", "none")
    done = run(program, tmp_path, "run", "quickstart", *one)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "rows.jsonl").read_text().count("\n") == 1
    merged = run(program, tmp_path, "results", "merge", "leaderboards/quickstart", "--out", "all")
    assert merged.returncode == 0, merged.stderr
    (tmp_path / "mine.yaml").write_text("fcilbench: 1\nname: mine\nextends: suites/quickstart.yaml\nseeds: 1\n")
    mine = run(program, tmp_path, "plan", "mine.yaml", "--out", "all")
    assert mine.returncode == 0, mine.stderr


@pytest.mark.slow
def test_another_version_of_the_package_makes_no_row_stale_and_no_cell_new(wheel, tmp_path):
    """Versions of protocol, engine and plugins decide that, not that of the release."""
    site, plans = tmp_path / "site", []
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    shutil.copytree(ROOT / "leaderboards" / "quickstart", tmp_path / "all")
    for version in (fcilbench.__version__, "99.1"):
        init, old = site / "fcilbench" / "__init__.py", next(site.glob("fcilbench-*.dist-info"))
        init.write_text(init.read_text().replace(f'"{fcilbench.__version__}"', f'"{version}"'))
        info = old.rename(site / f"fcilbench-{version}.dist-info")
        text = (info / "METADATA").read_text()
        (info / "METADATA").write_text(text.replace(f"Version: {fcilbench.__version__}", f"Version: {version}"))
        environment = {**os.environ, "PYTHONPATH": str(site), "FCILBENCH_CACHE": str(tmp_path / version)}

        def say(*arguments, environment=environment):
            command = [sys.executable, "-m", "fcilbench", *arguments]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert say("--version") == f"fcilbench {version}\n"
        found = json.loads(say("plugins", "show", "sum", "--format", "json"))["plugins"][0]
        assert found["dist_version"] == version
        plans.append(json.loads(say("plan", "quickstart", "--out", "all", "--format", "json"))["cells"])
    states = [[(each["cell_id"], each["state"], each["why"]) for each in plan] for plan in plans]
    assert len(states[0]) == 12
    assert states[0] == states[1]
