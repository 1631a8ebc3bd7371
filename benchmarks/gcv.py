"""How well generalised cross-validation chooses the strength of a ridge regression where samples are few.

    python -m benchmarks.gcv ROOT

ROOT holds EuroSAT_RGB/ and weights/ with the small ViT. The features are those of the control `ridge`, or 800 random
features of them as RanPAC has; accuracy is on 100 other images a class. `bound` is the largest share of the samples
that the fit's degrees of freedom may take (`fcilbench.vectors.ridge.LEAST_LEFT`), `best` the best strength of the grid.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import common
from benchmarks.defaults import WEIGHTS
from fcilbench.api import BARE
from fcilbench.federation.experiment import Experiment, build
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.datasets.eurosat import EuroSat
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.vectors import ridge

SIZES = ((2, 20), (2, 80), (4, 40), (10, 10), (10, 18), (10, 20), (10, 40), (10, 80))
"""Classes, and samples of each."""
HELD = 100
RANDOM = 800
BOUNDS = (1e-6, ridge.LEAST_LEFT)
REPEATS = 10


def features_of(root: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns features `[N, F]` of 200 images a class, in float64, and their classes `[N]`."""
    ran = Experiment(
        dataset=EuroSat(EuroSat.Params(train_per_class=20, test_per_class=200)),
        backbone=Timm(Timm.Params(model="vit_tiny_patch16_224", weights=WEIGHTS, args=common.SMALL)),
        aggregator=FedAvg(),
        stressor=NoStress(),
        data_root=root,
        device="cpu",
    )
    federation = build(ran)
    net = federation.model.under(federation.initial)
    with torch.no_grad():
        parts = [
            net.outputs(federation.test.plain(index), BARE)["features"].double() for index in federation.test_index
        ]
    labels = torch.cat([federation.test.labels[index] for index in federation.test_index])
    return torch.cat(parts), labels


def accuracies(features: torch.Tensor, labels: torch.Tensor, size: tuple[int, int], seed: int) -> list[float]:
    """Returns the accuracy in per cent under each bound, and at the best strength of the grid."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randperm(10, generator=generator)[: size[0]]
    train, test = [], []
    for each in classes:
        rows = (labels == each).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        train.append(rows[: size[1]])
        test.append(rows[-HELD:])
    inputs, others, truth = features[torch.cat(train)], features[torch.cat(test)], labels[torch.cat(test)]
    targets = F.one_hot(torch.arange(size[0]).repeat_interleave(size[1]), size[0]).to(inputs)
    gram, sums = inputs.T @ inputs, targets.T @ inputs
    values, vectors = ridge.spectrum(gram)
    turned, found = others @ vectors, sums @ vectors

    def accuracy(strength: float) -> float:
        answers = classes[(turned @ (found / (values + strength * values.mean())).T).argmax(dim=1)]
        return 100.0 * float((answers == truth).double().mean())

    chosen = []
    for left in BOUNDS:
        ridge.LEAST_LEFT = left
        chosen.append(accuracy(ridge.gcv_strength(gram, sums, len(inputs))))
    return [*chosen, max(map(accuracy, ridge.GRID))]


def line(features: torch.Tensor, labels: torch.Tensor, size: tuple[int, int]) -> dict[str, Any]:
    """Returns a line of the table: the mean over the draws, and the worst one."""
    found = zip(*(accuracies(features, labels, size, seed) for seed in range(REPEATS)), strict=True)
    record: dict[str, Any] = {"classes": size[0], "samples": size[0] * size[1], "features": features.shape[1]}
    for name, own in zip(("no bound", f"bound {1 - ridge.LEAST_LEFT:.1f}", "best"), found, strict=True):
        record |= {name: f"{statistics.fmean(own):.1f}", f"{name}, worst": f"{min(own):.1f}"}
    return record


def main(root: Path) -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    features, labels = features_of(root)
    drawn = torch.randn(features.shape[1], RANDOM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lifted = torch.relu(features @ drawn)
    print(common.origin(), "\n")
    print(common.table([line(own, labels, size) for own in (features, lifted) for size in SIZES]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
