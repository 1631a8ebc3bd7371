"""What a cell costs beside its training: a suite of many tiny cells, with and without MLflow and checkpoints.

python benchmarks/overhead.py --cells 1000
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common
from fcilbench.results.store import Store

SUITE = """
fcilbench: 1
name: tiny
grid:
  dataset: [{{use: digits, tasks: 2, train_per_class: 4, test_per_class: 2}}]
  backbone: [{{use: timm, model: vit_tiny_patch16_224, weights: none, args: {{img_size: 8, patch_size: 4, depth: 1}}}}]
  partition: [iid]
  aggregator: [fedavg]
  stress: [none]
protocol: {{clients: 2, rounds: 1, local_epochs: 1}}
seeds: {seeds}
"""


def run(folder: Path, cells: int, name: str, tracking: str, out: str, *extra: str) -> dict[str, Any]:
    """Runs the suite with one worker and returns its seconds: all of them, and by the rows' own account."""
    suite = folder / "tiny.yaml"
    suite.write_text(SUITE.format(seeds=cells))
    store = folder / out
    command = [sys.executable, "-m", "fcilbench", "run", str(suite), "--out", str(store), "--jobs", "1", "--yes", "-q"]
    start = time.perf_counter()
    subprocess.run([*command, "--gpus", "none", "--tracking", tracking, *extra], check=True, capture_output=True)
    seconds = time.perf_counter() - start
    costs = [row.cost for row in Store(store).latest().values()]
    inside = sum(cost.wall_s for cost in costs)
    trained = sum(cost.training_s + cost.aggregation_s + cost.task_end_s + cost.evaluation_s for cost in costs)
    return {
        "what": name,
        "cells": len(costs),
        "seconds": seconds,
        "ms_a_cell": 1000 * seconds / len(costs),
        "training_and_evaluation_ms": 1000 * trained / len(costs),
        "data_model_checkpoint_ms": 1000 * (inside - trained) / len(costs),
        "outside_the_cell_ms": 1000 * (seconds - inside) / len(costs),
    }


def main() -> None:
    """Prints the table and, if asked, writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = [
            run(folder, 1, "one cell", "none", "one"),
            run(folder, 1, "one cell, MLflow", "mlflow", "one-mlflow"),
            run(folder, options.cells, "many cells", "none", "many"),
            run(folder, options.cells, "no checkpoints", "none", "bare", "-s", "runtime.checkpoint=never"),
            run(folder, options.cells, "many cells, MLflow", "mlflow", "many-mlflow"),
        ]
        again = run(folder, options.cells, "all done", "none", "many")
        rows.append({**again, **dict.fromkeys([key for key in again if key.endswith("_ms")], "-")})
    print(common.table(rows))
    common.write(options.json, "overhead", "cpu", rows)


if __name__ == "__main__":
    main()
