"""Packages of third parties, installed for the tests as their users would install them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

collect_ignore = ["acme-fcil"]
HERE = Path(__file__).parent


class Site:
    """A folder of installed packages, and processes that see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FCILBENCH_", "MLFLOW_"))}
        paths = [str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = kept | {
            "PYTHONPATH": os.pathsep.join(paths),
            "FCILBENCH_CACHE": str(folder / "cache"),
            "FCILBENCH_DATA": str(folder / "data"),
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "160",
        }

    def install(self, source: Path) -> None:
        """Installs a project without touching the environment of the tests or the project's folder."""
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
        self.python("-m", "pip", "install", *options, "--target", str(self.folder / "site"), str(source), check=True)

    def python(self, *arguments: str, cwd: Path | None = None, check: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=300,
        )

    def fcilbench(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.python("-c", "from fcilbench.cli.main import main; main()", *arguments, cwd=cwd)

    def pytest(self, project: Path) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=project)


@pytest.fixture(scope="session")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site in which acme-fcil is installed; its project lies in `project`."""
    site = Site(tmp_path_factory.mktemp("acme"))
    shutil.copytree(HERE / "acme-fcil", site.folder / "project")
    site.install(site.folder / "project")
    return site


@pytest.fixture
def empty_site(tmp_path: Path) -> Site:
    return Site(tmp_path)
