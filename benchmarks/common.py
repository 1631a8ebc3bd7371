"""Workloads, synthetic images and the table printer that the benchmarks share."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.dataset import Augmentation, Corpus, Dataset, Samples
from fcilbench.federation.experiment import Experiment
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Evaluation, Partition, Protocol, Runtime


@dataclass(frozen=True)
class Workload:
    """One communication round to time.

    Attributes:
        model: timm architecture, random weights.
        args: Its arguments.
        clients: Number of clients N.
        images: Training images of each client.
        epochs: Local epochs E.
        batch_size: Samples per step.
        targets: Layers with LoRA adapters of rank 4; without any the whole model is trained.
        tasks: Tasks of the stream, each of as many images.
    """

    model: str
    args: dict[str, Any]
    clients: int
    images: int
    epochs: int
    batch_size: int = 16
    targets: tuple[str, ...] = ()
    tasks: int = 1

    def backbone(self) -> Timm:
        """Returns the backbone, with random weights."""
        adapter = {"use": "lora", "rank": 4, "alpha": 4, "targets": self.targets} if self.targets else None
        return Timm(Timm.Params(model=self.model, weights="none", args=self.args, adapter=adapter))


SMALL = {"img_size": 64, "patch_size": 8}
MINI = {"img_size": 8, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2, "class_token": False}
MINI |= {"global_pool": "avg"}
WORKLOADS = {
    # The paper's CIFAR-100 round: 10 clients, 5,000 images a task, 5 epochs.
    "vit-b": Workload("vit_base_patch16_224", {}, clients=10, images=500, epochs=5),
    "vit-small": Workload("vit_tiny_patch16_224", SMALL, clients=10, images=500, epochs=5),
    # Ten clients of quickstart.yaml's network.
    "vit-mini": Workload("vit_tiny_patch16_224", MINI, clients=10, images=64, epochs=1),
    "vit-small-cpu": Workload("vit_tiny_patch16_224", SMALL, clients=2, images=64, epochs=2),
    "dry": Workload("vit_tiny_patch16_224", {"img_size": 16, "patch_size": 8, "depth": 1}, 2, images=20, epochs=1),
}
for _name in ("vit-b", "vit-small-cpu"):
    WORKLOADS[f"{_name}-lora"] = replace(WORKLOADS[_name], targets=("qkv", "proj"))


class Noise(Dataset):
    """CIFAR-shaped noise; by default 10 classes in one task."""

    default_tasks = 1
    augmentation = Augmentation(crop_padding=4, flip=True)

    def __init__(self, train: int, test: int = 100, classes: int = 10) -> None:
        super().__init__()
        self.classes, self.train_samples, self.test_samples = classes, train, test

    def load(self, root: Path) -> Corpus:
        """Returns the noise."""
        random = np.random.default_rng(0)
        splits = [
            Samples(random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % self.classes)
            for count in (self.train_samples, self.test_samples)
        ]
        return Corpus(splits[0], splits[1], tuple(map(str, range(self.classes))))


def experiment(work: Workload, aggregator: Aggregator, device: str, precision: str, **runtime: Any) -> Experiment:
    """Returns the experiment whose first round is timed; `runtime` overrides how it is run."""
    return Experiment(
        dataset=Noise(work.clients * work.images * work.tasks),
        backbone=work.backbone(),
        aggregator=aggregator,
        stressor=NoStress(),
        data_root=Path(),
        protocol=Protocol.model_validate(
            {
                "clients": work.clients,
                "rounds": 1,
                "local_epochs": work.epochs,
                "batch_size": work.batch_size,
                "precision": precision,
            }
        ),
        partition=Partition(kind="iid"),
        tasks=work.tasks,
        evaluate=Evaluation(task_identity=("none",)),
        runtime=Runtime.model_validate({"threads": torch.get_num_threads(), **runtime}),
        device=device,
    )


def flops_per_image(work: Workload) -> float:
    """Returns forward and backward FLOP of one image, counted from the operations (a multiply-add is two)."""
    backbone = work.backbone()
    model = backbone.build()
    backbone.adapt(model)
    size = work.args.get("img_size", 224)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, size, size)).sum().backward()
    return float(counter.get_total_flops())


def card(device: str) -> str:
    """Returns the device's name."""
    return torch.cuda.get_device_name(0) if device == "cuda" else f"CPU ({torch.get_num_threads()} threads)"


def facts(device: str) -> dict[str, Any]:
    """Returns what a reader needs to know about a measurement."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "card": card(device),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def origin() -> str:
    """Returns the date, commit and command of a measurement, for a result that is text."""
    found = facts("cpu")
    return f"{found['date']}, commit {found['commit'][:12]}, `{command()}`"


def command() -> str:
    """Returns the command that runs now."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def table(rows: list[dict[str, Any]]) -> str:
    """Returns rows of equal keys as an aligned text table."""
    heads = list(rows[0])
    cells = [heads, *[[_text(row[head]) for head in heads] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells)


def write(path: Path | None, name: str, device: str, rows: list[dict[str, Any]]) -> None:
    """Adds the rows of a benchmark, with the command that made them, to a JSON file."""
    if path is None:
        return
    record = json.loads(path.read_text()) if path.exists() else {"facts": facts(device), "benchmarks": {}}
    record["benchmarks"][name] = {"command": command(), "rows": rows}
    path.write_text(json.dumps(record, indent=1) + "\n")


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
