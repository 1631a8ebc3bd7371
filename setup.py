"""Puts suites, leaderboards and weights into the wheel, where `fcilbench.shipped` finds them. See pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithShippedFiles(build_py):
    """Builds the package and copies what lies beside it in a clone."""

    def run(self) -> None:
        """Copies the folders, unless the install is editable: then they are found beside the package."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "fcilbench" / "shipped_files"
        shutil.rmtree(target, ignore_errors=True)
        for kind in ("suites", "leaderboards", "weights"):
            shutil.copytree(kind, target / kind)


setup(cmdclass={"build_py": BuildWithShippedFiles})
