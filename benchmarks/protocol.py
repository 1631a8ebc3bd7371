"""A whole CIFAR-100-shaped protocol, evaluation and capture included: 10 tasks of 5 rounds, 5,000 images a task.

python benchmarks/protocol.py --workload vit-small            # on a GPU; --batch-size 64 for larger steps
python benchmarks/protocol.py --workload dry --tasks 2 --rounds 1    # anywhere
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.spec.protocol import Partition

CLASSES = 10
"""Of a task."""


def measure(work: common.Workload, tasks: int, rounds: int, device: str) -> dict[str, Any]:
    """Times FedAvg from nothing to its outcome; Dirichlet(0.5) clients, so that they finish one after the other."""
    precision = "bf16" if device == "cuda" else "fp32"
    one = common.experiment(work, FedAvg(), device, precision, checkpoint="never")
    train = work.clients * work.images * tasks
    experiment = replace(
        one,
        dataset=common.Noise(train, train // 5, CLASSES * tasks),
        tasks=tasks,
        partition=Partition(kind="dirichlet", value=0.5),
        protocol=one.protocol.model_copy(update={"rounds": rounds}),
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_experiment(experiment, Path(folder))
    return {
        "whole_s": time.perf_counter() - start,
        "training_s": outcome.cost.training_s,
        "aggregation_s": outcome.cost.aggregation_s,
        "evaluation_s": outcome.cost.evaluation_s,
        "images_per_s": train * work.epochs * rounds / outcome.cost.training_s,
        "peak_GB": outcome.cost.peak_mem / 1e9,
        "warnings": "; ".join(outcome.warnings) or "-",
    }


def main() -> None:
    """Prints the table and, if asked, writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=common.WORKLOADS, default="vit-small")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    work = replace(common.WORKLOADS[options.workload], batch_size=options.batch_size)
    rows = [measure(work, options.tasks, options.rounds, device)]
    print(f"{options.workload}, {options.tasks} tasks of {options.rounds} rounds, batch {options.batch_size}, ", end="")
    print(common.card(device))
    print(common.table(rows))
    name = f"protocol/{options.workload}/{options.tasks}x{options.rounds}/batch-{options.batch_size}"
    common.write(options.json, name, device, rows)


if __name__ == "__main__":
    main()
