"""What evaluation costs beside training, by the selectors that a cell is scored under.

    python -m benchmarks.selectors [--method sum] [--tasks 20] [--test 2] [--json FILE]

CIFAR-100 with 20 training images a class and four blocks of a ViT-Tiny without weights, 5 clients, 2 rounds of 2
epochs: what counts is how many images pass the network, not what it has learned. `own` is SUM's most confident module:
each sample passes all T modules, as it did in SUM's evaluation whatever its selector was.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import common
from fcilbench.api import Aggregator, Selector
from fcilbench.data.root import data_root
from fcilbench.federation.experiment import Experiment
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.datasets.cifar import Cifar100
from fcilbench.plugins.selectors.ridge import Ridge
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.outcome import Cost
from fcilbench.spec.protocol import Evaluation, Partition, Protocol

PARTS = ("training", "aggregation", "task_end", "selection", "evaluation")
METHODS: dict[str, type[Aggregator]] = {"sum": Sum, "fedavg": FedAvg}
SCORED: dict[str, dict[str, Any]] = {
    "none, own, oracle": {"selectors": {"inferred": Selector()}},
    "none, ridge, oracle": {"selectors": {"inferred:ridge": Ridge()}},
    "ridge alone": {"selectors": {"inferred:ridge": Ridge()}, "evaluate": Evaluation(task_identity=("inferred",))},
}


def cost(method: Aggregator, tasks: int, test: int, scored: dict[str, Any]) -> Cost:
    """Returns what a cell costs."""
    size = {"model": "vit_tiny_patch16_224", "weights": "none", "args": {"img_size": 32, "patch_size": 8, "depth": 4}}
    experiment = Experiment(
        dataset=Cifar100(Cifar100.Params(train_per_class=20, test_per_class=test)),
        backbone=Timm(Timm.Params.model_validate(size)),
        aggregator=method,
        stressor=NoStress(),
        data_root=data_root(),
        tasks=tasks,
        partition=Partition(kind="dirichlet", value=0.5),
        protocol=Protocol(clients=5, rounds=2, local_epochs=2, lr=2e-4, augment=False),
        **scored,
    )
    with tempfile.TemporaryDirectory() as folder:
        return run_experiment(experiment, Path(folder)).cost


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--method", choices=METHODS, default="sum")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--test", type=int, default=2, help="test images of each class")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, scored in SCORED.items():
        found = cost(METHODS[options.method](), options.tasks, options.test, scored)
        parts = {part: getattr(found, f"{part}_s") for part in PARTS}
        rows.append({"scored under": name, **parts, "share": found.evaluation_s / sum(parts.values())})
        print(rows[-1], flush=True)
    print(common.table(rows))
    common.write(options.json, f"selectors {options.method}", "cpu", rows)


if __name__ == "__main__":
    main()
