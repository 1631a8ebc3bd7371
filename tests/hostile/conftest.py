import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

collect_ignore = ["evil.py"]
POINTS = "[fcilbench.aggregators]\nevil = evil:Evil\nslow = slow:Slow\n"
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Runs Python in a folder with files that must not be imported, with the hostile package installed."""
    folder = tmp_path_factory.mktemp("hostile")
    site = folder / "site"
    info = site / "evil-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (site / "evil.py").write_text(Path(__file__).with_name("evil.py").read_text())
    (site / "slow.py").write_text("import time\ntime.sleep(600)\n")
    for name in ("queue", "timm", "sitecustomize"):
        (folder / f"{name}.py").write_text("open('hijacked', 'w')\nraise SystemExit('hijacked')\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FCILBENCH_", "MLFLOW_"))}
    places = {"PYTHONPATH": str(site), "FCILBENCH_CACHE": str(folder / "cache"), "FCILBENCH_DATA": str(folder / "data")}
    environment = {**kept, **places, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "160"}

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-P", "-c", f"from fcilbench.cli.main import main; {code}main()", *arguments]
        return subprocess.run(
            line, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
        )

    run.folder = folder  # type: ignore[attr-defined]
    return run
