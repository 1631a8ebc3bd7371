"""What a cell takes while its passes before training are made, and when they are read: processor seconds, side by side.

    python -m benchmarks.features [--methods ridge ncm l2p] [--train 40] [--json FILE]

EuroSAT with the small ViT in 5 tasks, 5 clients, 2 rounds of 2 epochs. `cold` begins with an empty cache folder,
`warm` is the same cell again; both must end with the same model. `fedavg+ridge` is FedAvg under the selector `ridge`.
A first, small cell pays for imports and for decoding the data.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common
from fcilbench.api import Selector
from fcilbench.data.root import data_root
from fcilbench.federation.experiment import Experiment
from fcilbench.federation.run import run_experiment
from fcilbench.files import CACHE, cache_root
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.datasets.eurosat import EuroSat
from fcilbench.plugins.selectors.ridge import Ridge
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.registry import entrypoints
from fcilbench.spec.outcome import Outcome
from fcilbench.spec.protocol import Evaluation, Partition, Protocol

WEIGHTS = "vit_tiny_patch8_64.tiny_imagenet.safetensors"
SMALL = {"model": "vit_tiny_patch16_224", "weights": WEIGHTS, "args": {"img_size": 64, "patch_size": 8}}


def cell(name: str, train: int) -> tuple[Outcome, float]:
    """Runs a cell; returns its outcome and the processor seconds that it took."""
    method, _, selector = name.partition("+")
    plugin = entrypoints.load(entrypoints.lookup("aggregators", method))
    experiment = Experiment(
        dataset=EuroSat(EuroSat.Params(train_per_class=train, test_per_class=train)),
        backbone=Timm(Timm.Params.model_validate(SMALL)),
        aggregator=plugin(plugin.Params()),  # type: ignore[arg-type]
        stressor=NoStress(),
        data_root=data_root(),
        tasks=5,
        partition=Partition(kind="dirichlet", value=0.5),
        protocol=Protocol(clients=5, rounds=2, local_epochs=2, lr=5e-4),
        evaluate=Evaluation(task_identity=("none", "inferred")),
        selectors={"inferred:ridge": Ridge()} if selector else {"inferred": Selector()},
    )
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_experiment(experiment, Path(folder))
    return outcome, time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["ridge", "ncm", "slda", "l2p", "fedavg+ridge"])
    parser.add_argument("--train", type=int, default=40, help="training and test images of each class")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as caches:
        cell("ncm", 4)
        decoded = cache_root().absolute() / "datasets"
        for name in options.methods:
            os.environ[CACHE] = f"{caches}/{name}"
            Path(caches, name).mkdir()
            Path(caches, name, "datasets").symlink_to(decoded)
            (cold, one), (warm, two) = cell(name, options.train), cell(name, options.train)
            same = cold.model_digest == warm.model_digest and cold.accuracy == warm.accuracy
            size = sum(path.stat().st_size for path in Path(caches, name, "features").iterdir())
            rows.append({"method": name, "cold_s": one, "warm_s": two, "cold / warm": one / two, "same": same})
            rows[-1] |= {"MB": size / 1e6, "peak_cold_MB": cold.cost.peak_mem / 1e6}
            rows[-1]["peak_warm_MB"] = warm.cost.peak_mem / 1e6
            print(rows[-1], flush=True)
    print(common.table(rows))
    common.write(options.json, "features", "cpu", rows)


if __name__ == "__main__":
    main()
