import os
import subprocess
import sys
from pathlib import Path

import pytest

collect_ignore = ["evil.py"]


@pytest.fixture(scope="module")
def command(put, tmp_path_factory):
    """Runs Python in a folder with files that must not be imported, with the hostile package installed."""
    folder = tmp_path_factory.mktemp("hostile")
    evil = Path(__file__).with_name("evil.py").read_text()
    files = {"evil.py": evil, "slow.py": "import time\ntime.sleep(600)\n"}
    site = put(folder / "site", "evil", files, {"aggregators": {"evil": "evil:Evil", "slow": "slow:Slow"}})
    for name in ("queue", "timm", "sitecustomize"):
        (folder / f"{name}.py").write_text("open('hijacked', 'w')\nraise SystemExit('hijacked')\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FCILBENCH_", "MLFLOW_"))}
    places = {"PYTHONPATH": str(site), "FCILBENCH_CACHE": str(folder / "cache"), "FCILBENCH_DATA": str(folder / "data")}
    environment = {**kept, **places, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "160"}

    def run(code, *arguments):
        line = [sys.executable, "-P", "-c", f"from fcilbench.cli.main import main; {code}main()", *arguments]
        place = {"cwd": folder, "env": environment, "timeout": 500}
        return subprocess.run(line, capture_output=True, text=True, check=False, **place)

    run.folder = folder
    return run
