"""The controls where samples are few: the strength that `ridge` chooses by GCV, and the shrinkage of `slda`.

    python -m benchmarks.few_samples ROOT

ROOT holds EuroSAT_RGB/ and weights/ with the small ViT. The features are those of the controls, or 800 random features
of them as RanPAC has; accuracy is on 100 other images a class. `bound` is the largest share of the samples that the
degrees of freedom of a ridge regression may take (`fcilbench.vectors.ridge.LEAST_LEFT`), `best` the best strength of
the grid.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
from fcilbench.vectors.lda import lda_head, oas_shrinkage, within_covariance

SIZES = ((2, 20), (2, 80), (4, 40), (10, 10), (10, 18), (10, 20), (10, 40), (10, 80))
"""Classes, and samples of each."""
HELD = 100
RANDOM = 800
BOUNDS = (1e-6, ridge.LEAST_LEFT)
REPEATS = 10
EACH = (2, 10, 18, 20, 24, 40, 80)
"""Samples of each of the ten classes, for `slda`."""
SHRINKAGE: tuple[float | Literal["oas"], ...] = (1e-4, 1e-2, 1e-1, "oas")


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


@dataclass(frozen=True)
class Draw:
    """Samples of some classes that are drawn, and others to test on.

    Attributes:
        gram: X^T X of the samples, `[F, F]`.
        sums: The sum of the features of each class, `[C, F]`.
        count: Number of samples of each class.
    """

    gram: torch.Tensor
    sums: torch.Tensor
    count: int
    others: torch.Tensor
    truth: torch.Tensor

    @classmethod
    def of(cls, features: torch.Tensor, labels: torch.Tensor, size: tuple[int, int], seed: int) -> Draw:
        """Draws classes, and as many samples of each."""
        generator = torch.Generator().manual_seed(seed)
        train, test = [], []
        for each in torch.randperm(10, generator=generator)[: size[0]]:
            rows = (labels == each).nonzero()[:, 0]
            rows = rows[torch.randperm(len(rows), generator=generator)]
            train.append(rows[: size[1]])
            test.append(rows[-HELD:])
        inputs = features[torch.cat(train)]
        targets = F.one_hot(torch.arange(size[0]).repeat_interleave(size[1]), size[0]).to(inputs)
        truth = torch.arange(size[0]).repeat_interleave(HELD)
        return cls(inputs.T @ inputs, targets.T @ inputs, size[1], features[torch.cat(test)], truth)

    def accuracy(self, logits: torch.Tensor) -> float:
        """Returns the accuracy in per cent."""
        return 100.0 * float((logits.argmax(dim=1) == self.truth).double().mean())


def of_ridge(draw: Draw) -> list[float]:
    """Returns the accuracy of ridge regression under each bound, and at the best strength of the grid."""
    values, vectors = ridge.spectrum(draw.gram)
    turned, found = draw.others @ vectors, draw.sums @ vectors

    def accuracy(strength: float) -> float:
        return draw.accuracy(turned @ (found / (values + strength * values.mean())).T)

    chosen = []
    for left in BOUNDS:
        ridge.LEAST_LEFT = left
        chosen.append(accuracy(ridge.gcv_strength(draw.gram, draw.sums, len(draw.sums) * draw.count)))
    return [*chosen, max(map(accuracy, ridge.GRID))]


def of_lda(draw: Draw) -> list[float]:
    """Returns the accuracy of linear discriminant analysis with each shrinkage."""
    counts = torch.full((len(draw.sums),), float(draw.count))
    covariance = within_covariance(draw.gram, draw.sums, counts)
    level, found = float(covariance.diagonal().mean()), []
    for each in SHRINKAGE:
        shrinkage = oas_shrinkage(covariance, float(counts.sum())) if each == "oas" else each
        weight, bias = lda_head(covariance, draw.sums / draw.count, shrinkage, level)
        found.append(draw.accuracy(draw.others @ weight.T + bias))
    return found


def line(data: tuple[torch.Tensor, torch.Tensor], size: tuple[int, int]) -> dict[str, Any]:
    """Returns a line of the table of ridge regression: the mean over the draws, and the worst one."""
    found = zip(*(of_ridge(Draw.of(*data, size, seed)) for seed in range(REPEATS)), strict=True)
    record: dict[str, Any] = {"classes": size[0], "samples": size[0] * size[1], "features": data[0].shape[1]}
    for name, own in zip(("no bound", f"bound {1 - BOUNDS[-1]:.1f}", "best"), found, strict=True):
        record |= {name: f"{statistics.fmean(own):.1f}", f"{name}, worst": f"{min(own):.1f}"}
    return record


def lda_line(data: tuple[torch.Tensor, torch.Tensor], each: int) -> dict[str, Any]:
    """Returns a line of the table of LDA: the mean over the draws."""
    found = zip(*(of_lda(Draw.of(*data, (10, each), seed)) for seed in range(REPEATS)), strict=True)
    means = {f"shrinkage {name}": f"{statistics.fmean(own):.1f}" for name, own in zip(SHRINKAGE, found, strict=True)}
    return {"classes": 10, "samples": 10 * each, "features": data[0].shape[1], **means}


def main(root: Path) -> None:
    """Prints both tables."""
    torch.set_num_threads(1)
    features, labels = features_of(root)
    drawn = torch.randn(features.shape[1], RANDOM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lifted = torch.relu(features @ drawn)
    print(common.origin(), "\n")
    print(
        "ridge:",
        common.table([line((own, labels), size) for own in (features, lifted) for size in SIZES]),
        "",
        sep="\n",
    )
    print("slda:", common.table([lda_line((features, labels), each) for each in EACH]), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
