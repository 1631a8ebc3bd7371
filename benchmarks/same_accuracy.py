"""What the engine's ways of being fast cost in accuracy: each against fp32, without capture, on the same seeds.

    python benchmarks/same_accuracy.py [--seeds 5] [--data ROOT] [--json FILE]

FedAvg on real images: scikit-learn's digits with quickstart.yaml's small ViT from scratch, or, with --data on a GPU,
CIFAR-100 with the small pretrained ViT. `difference` is the mean over seeds of a way's FAA minus the plain FAA of the
same seed, `+-` the half width of its 95 % confidence interval (Student t), `seed noise` the standard deviation of the
plain FAA over seeds. All in per cent; a way is harmless where the difference is inside its interval and the noise.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student

from benchmarks import common
from fcilbench.federation.experiment import Experiment
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.datasets.cifar import Cifar100
from fcilbench.plugins.datasets.digits import Digits
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Partition, Protocol, Runtime, Seeds

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp32, plain": ("fp32", {"capture": "off"}),
    "bf16, plain": ("bf16", {"capture": "off"}),
    "fp32, captured, padded": ("fp32", {"capture": "auto"}),
    "bf16, captured, padded": ("bf16", {"capture": "auto"}),
}
NOT_ON_CPU = tuple(way for way, (_, runtime) in WAYS.items() if runtime["capture"] == "auto")


def digits(seed: int, precision: str, runtime: dict[str, Any], device: str) -> Experiment:
    """Returns FedAvg with ten clients on the digits; a few seconds on a CPU."""
    args = {**common.MINI, "in_chans": 1}
    return Experiment(
        dataset=Digits(Digits.Params()),
        backbone=Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args=args)),
        protocol=_protocol({"clients": 10, "rounds": 3, "local_epochs": 3, "lr": 1e-3}, precision),
        data_root=Path(),
        tasks=5,
        **_rest(seed, runtime, device),
    )


def cifar(seed: int, precision: str, runtime: dict[str, Any], device: str, root: Path) -> Experiment:
    """Returns FedAvg with ten clients on half of CIFAR-100; for a GPU."""
    backbone = Timm.Params(
        model="vit_tiny_patch16_224", weights="vit_tiny_patch8_64.tiny_imagenet.safetensors", args=common.SMALL
    )
    return Experiment(
        dataset=Cifar100(Cifar100.Params(train_per_class=250)),
        backbone=Timm(backbone),
        protocol=_protocol({"clients": 10, "rounds": 2, "local_epochs": 2, "lr": 1e-4, "batch_size": 64}, precision),
        data_root=root,
        tasks=10,
        **_rest(seed, runtime, device),
    )


def _protocol(numbers: dict[str, Any], precision: str) -> Protocol:
    return Protocol.model_validate({**numbers, "precision": precision})


def _rest(seed: int, runtime: dict[str, Any], device: str) -> dict[str, Any]:
    how = {"threads": torch.get_num_threads(), "checkpoint": "never", **runtime}
    return {
        "aggregator": FedAvg(),
        "stressor": NoStress(),
        "partition": Partition(kind="dirichlet", value=0.5),
        "seeds": Seeds(index=seed),
        "runtime": Runtime.model_validate(how),
        "device": device,
    }


def faa(experiment: Experiment) -> tuple[float, list[str]]:
    """Runs an experiment and returns its FAA without task identity in per cent, and its warnings."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_experiment(experiment, Path(folder))
    value = outcome.metrics["faa/none"].value
    assert value is not None
    return 100 * value, outcome.warnings


def row(way: str, plain: list[float], found: list[float], seconds: float) -> dict[str, Any]:
    """Returns a line of the table."""
    differences = [own - other for own, other in zip(found, plain, strict=True)]
    count = len(differences)
    spread = statistics.stdev(differences) if count > 1 else math.nan
    return {
        "way": way,
        "faa_%": statistics.mean(found),
        "difference": statistics.mean(differences),
        "+-": float(student.ppf(0.975, count - 1)) * spread / math.sqrt(count) if count > 1 else math.nan,
        "seed noise": statistics.stdev(plain) if count > 1 else math.nan,
        "s_per_run": seconds / count,
    }


def main() -> None:
    """Runs every way on every seed and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path, default=None, help="data root with CIFAR-100 and the small ViT's weights")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain: list[float] = []
    rows, notes = [], []
    for way, (precision, runtime) in WAYS.items():
        if device == "cpu" and way in NOT_ON_CPU:
            continue
        start, found = time.perf_counter(), []
        for seed in range(options.seeds):
            arguments = (seed, precision, runtime, device)
            value, warnings = faa(cifar(*arguments, options.data) if options.data else digits(*arguments))
            found.append(value)
            notes += [f"{way}: {text}" for text in warnings]
        plain = plain or found
        rows.append(row(way, plain, found, time.perf_counter() - start))
    what = "CIFAR-100, small pretrained ViT" if options.data else "digits, small ViT from scratch"
    print(f"{what}, 10 clients, beta 0.5, {options.seeds} seeds, {common.card(device)}")
    print(common.table(rows))
    print("\n".join(sorted(set(notes))))
    common.write(options.json, f"same_accuracy/{'cifar100' if options.data else 'digits'}", device, rows)


if __name__ == "__main__":
    main()
