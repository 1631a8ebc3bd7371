"""What a user waits for beside training: help, a plan of 1,000 cells, the first step of a worker, MLflow.

python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import common

SUITE = """
fcilbench: 1
name: thousand
grid:
  dataset: [{use: digits, tasks: 5}]
  backbone: [{use: timm, model: vit_tiny_patch16_224, weights: none, args: {img_size: 8, patch_size: 4, depth: 1}}]
  partition: [{dirichlet: 0.5}]
  aggregator: [fedavg, joint]
  stress: [none]
seeds: 500
"""
FIRST_STEP = """
import time; start = time.perf_counter()
import torch, timm
from benchmarks import common
from fcilbench.federation.experiment import build
from fcilbench.federation.round import run_round
from fcilbench.federation.experiment import RoundContext
from fcilbench.engine.meters import Stopwatch
from fcilbench.plugins.aggregators.fedavg import FedAvg
federation = build(common.experiment(common.WORKLOADS["dry"], FedAvg(), "cpu", "fp32"))
phase = federation.schedule.phases[0]
rows = torch.empty(2, len(federation.server.vector))
run_round(federation, RoundContext(phase, 0), rows, Stopwatch(torch.device("cpu")))
"""


def seconds(command: list[str], folder: str) -> float:
    """Returns the wall-clock seconds of a command; NEW in it is a new folder."""
    new = tempfile.mkdtemp(dir=folder)
    start = time.perf_counter()
    subprocess.run([part.replace("NEW", new) for part in command], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Prints the median of three runs of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "thousand.yaml"
        suite.write_text(SUITE)
        cli = [sys.executable, "-m", "fcilbench"]
        one = [*cli, "run", str(suite), "--only", "aggregator:joint,seed:0", "-s", "protocol.rounds=1", "--out", "NEW"]
        commands = {
            "fcilbench --help": [*cli, "--help"],
            "fcilbench plan, 1,000 cells": [*cli, "plan", str(suite), "--out", folder],
            "first round of a worker": [sys.executable, "-c", FIRST_STEP],
            "a tiny cell, not tracked": [*one, "--tracking", "none"],
            "a tiny cell, with MLflow": one,
        }
        rows = []
        for name, command in commands.items():
            seconds(command, folder)  # fills the registry's cache and the disk's
            rows.append({"what": name, "seconds": sorted(seconds(command, folder) for _ in range(3))[1]})
    print(common.table(rows))
    common.write(options.json, "startup", "cpu", rows)


if __name__ == "__main__":
    main()
