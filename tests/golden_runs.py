"""The golden runs: every built-in method on one tiny vision and one tiny text federation, in portable numbers.

Every x86-64 processor gives these numbers to the last bit, so they are kept as they are, with the digest of the final
models (`docs/portability.md`). `test_golden.py` compares them. They are written anew by

    python tests/golden_runs.py --write            # all methods
    python tests/golden_runs.py --write fedavg     # one of them

Without `--write` the records are printed, as JSON; with `--plain` those of numbers that are not portable.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fcilbench.api import Corpus, Dataset, FeatureExtractor, Samples, TextBackbone, TokenIds
from fcilbench.engine.portable import make_portable
from fcilbench.federation.experiment import Experiment, Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.datasets.digits import Digits
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Partition, Protocol
from fcilbench.worker.portable import PORTABLE

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = GOLDEN / "versions.json"
METHODS = {e.name: e for e in entry_points(group="fcilbench.aggregators") if e.value.startswith("fcilbench.")}
MODALITIES = ("vision", "text")
OPTIONS = {
    "coda-prompt": {"components": 6},
    "target": {"g_ep": 4, "g_steps": 4, "kd_steps": 4, "warmup": 2},
}
"""Options of methods whose defaults are too large for these networks; others have those of the conformance kit."""


class Words(Dataset):
    """Six classes of short texts: two words of the class among eight words of noise, and six texts of no class."""

    modality = "text"
    classes, default_tasks, train_samples, test_samples = 6, 3, 90, 48

    def load(self, root: Path) -> Corpus:
        random = np.random.default_rng(7)
        splits = [self._draw(random, per_class) for per_class in (15, 8)]
        return Corpus(*splits, tuple("abcdef"), self._texts(random, np.full(6, -1)))

    def _draw(self, random: np.random.Generator, per_class: int) -> Samples:
        labels = np.repeat(np.arange(6), per_class)
        return Samples(self._texts(random, labels), labels)

    @staticmethod
    def _texts(random: np.random.Generator, labels: Any) -> Any:
        texts = np.empty(len(labels), dtype=object)
        for i, label in enumerate(labels):
            own = random.integers(2 * max(label, 0), 2 * max(label, 0) + 2, 3 if label >= 0 else 0)
            words = [*own, *random.integers(12, 20, 3 + i % 4)]
            texts[i] = " ".join(str(word) for word in random.permutation(words))
        return texts


class TinyEncoder(TextBackbone):
    """Embeddings of numbered words, one linear layer with ReLU and a norm, and the mean over the words."""

    def build(self) -> FeatureExtractor:
        class Body(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(21, 12)
                self.norm, self.linear = nn.LayerNorm(12), nn.Linear(12, 12)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                mask = (ids != 0).float()[:, :, None]
                hidden = torch.relu(self.linear(self.norm(self.embedding(ids))))
                return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)

        return FeatureExtractor(Body(), 12)

    def encode(self, texts: Any) -> TokenIds:
        rows = [[int(word) + 1 for word in text.split()] for text in texts]
        lengths = np.array([len(row) for row in rows])
        ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int32)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = row
        return TokenIds(ids, lengths, 0)


def experiment(method: str, modality: str) -> Experiment:
    from fcilbench.plugins.backbones.timm import Timm  # seconds, which text alone need not wait for

    vit = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    vision = {
        "dataset": Digits(Digits.Params(train_per_class=30, test_per_class=10)),
        "backbone": Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args=vit)),
        "tasks": (4, 1, 5),
    }
    plugin = METHODS[method].load()
    return Experiment(
        aggregator=plugin(plugin.Params(**OPTIONS.get(method, plugin.kit_params))),
        stressor=NoStress(),
        data_root=Path(),
        protocol=Protocol(clients=3, rounds=2, local_epochs=3, batch_size=8, lr=1e-2, weight_decay=0.01),
        partition=Partition(kind="dirichlet", value=0.5),
        **(vision if modality == "vision" else {"dataset": Words(), "backbone": TinyEncoder(), "tasks": 3}),
    )


def measure(method: str, modality: str) -> dict[str, Any]:
    """Returns digest, losses, accuracy matrices, the area under the curve of detection, and bytes of a golden run.

    Of a method that declines the network it returns the reason.
    """
    events: list[dict[str, Any]] = []
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = run_experiment(experiment(method, modality), Path(folder), events.append)
        except Unsupported as reason:
            return {"declined": str(reason)}
    auroc = outcome.metrics.get("oos_auroc/none")
    return {
        "model_digest": outcome.model_digest,
        "losses": [event["loss"] for event in events if event["event"] == "round"],
        "accuracy": outcome.accuracy,
        "oos_auroc": None if auroc is None else auroc.value,
        "bytes": [outcome.cost.bytes_up, outcome.cost.bytes_down],
    }


def versions() -> dict[str, str]:
    """Returns what the last bits of a golden run depend on, beside this project: libraries, and the kind of machine."""
    names = ("torch", "numpy", "timm", "scikit-learn")
    return {
        **{name: version(name) for name in names},
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
    }


def computed(methods: Sequence[str], modalities: Sequence[str] = MODALITIES, emulator: Sequence[str] = ()) -> Any:
    """Returns the records of golden runs, by method and modality, from a process that computes portable numbers.

    `emulator` is the command that runs it on another processor, e.g. `("qemu-x86_64", "-cpu", "Nehalem")`.
    """
    command = [*emulator, sys.executable, "-W", "ignore", __file__]
    environment = {**os.environ, **PORTABLE, "GOLDEN_MODALITIES": " ".join(modalities)}
    done = subprocess.run([*command, *methods], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Prints the records of some methods, or of all; with `--write` it writes them into the folder `golden`."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or sorted(METHODS)
    if "--write" in sys.argv:
        for name, record in computed(names).items():
            (GOLDEN / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        VERSIONS.write_text(json.dumps(versions(), indent=1) + "\n", encoding="utf-8")
        return
    if "--plain" not in sys.argv:
        make_portable()
    modalities = os.environ.get("GOLDEN_MODALITIES", " ".join(MODALITIES)).split()
    print(json.dumps({name: {modality: measure(name, modality) for modality in modalities} for name in names}))


if __name__ == "__main__":
    main()
