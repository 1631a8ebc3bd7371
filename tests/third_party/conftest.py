"""Packages of third parties, installed for the tests as their users would install them."""

import subprocess
import sys
from pathlib import Path

import pytest

collect_ignore = ["acme-fcil"]


@pytest.fixture(scope="session")
def python():
    """Returns `python(cli, *arguments)`: runs Python where the packages of a command line are installed."""

    def run(cli, *arguments, cwd=None):
        place = {"cwd": cwd or cli.folder, "env": cli.environment, "timeout": 300}
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **place)

    return run


@pytest.fixture(scope="session")
def pip_install(python):
    """Returns `pip_install(cli, project)`: touches neither the environment of the tests nor the project's folder."""

    def install(cli, project: Path):
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
        done = python(cli, "-m", "pip", "install", *options, "--target", str(cli.folder / "site"), str(project))
        assert done.returncode == 0, done.stderr

    return install
