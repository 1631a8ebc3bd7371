"""Golden runs: every built-in method on one tiny vision and one tiny text federation, one thread, values kept to 1e-4.

When a test here fails, a number of the product has moved. Mend it; or, if it moved knowingly, raise `ENGINE_VERSION` in
`fcilbench/spec/identity.py` (a method's own change: that method's `version`) and write the values anew with

    python tests/test_golden.py            # all methods
    python tests/test_golden.py fedavg     # one of them
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api import Corpus, Dataset, FeatureExtractor, Samples, TextBackbone, TokenIds
from fcilbench.federation.experiment import Experiment, Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.datasets.digits import Digits
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Partition, Protocol

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-4
METHODS = {e.name: e for e in entry_points(group="fcilbench.aggregators") if e.value.startswith("fcilbench.")}
MODALITIES = ("vision", "text")
OPTIONS = {
    "coda-prompt": {"components": 6},
    "target": {"g_ep": 4, "g_steps": 4, "kd_steps": 4, "warmup": 2},
}
"""Options of methods whose defaults are too large for these networks or would take minutes."""


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
    vit = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    vision = {
        "dataset": Digits(Digits.Params(train_per_class=30, test_per_class=10)),
        "backbone": Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args=vit)),
        "tasks": (4, 1, 5),
    }
    plugin = METHODS[method].load()
    return Experiment(
        aggregator=plugin(plugin.Params(**OPTIONS.get(method, {}))),
        stressor=NoStress(),
        data_root=Path(),
        protocol=Protocol(clients=3, rounds=2, local_epochs=3, batch_size=8, lr=1e-2, weight_decay=0.01),
        partition=Partition(kind="dirichlet", value=0.5),
        **(vision if modality == "vision" else {"dataset": Words(), "backbone": TinyEncoder(), "tasks": 3}),
    )


def measure(method: str, modality: str) -> dict[str, Any]:
    """Returns the losses of the curve, the accuracy matrices, the area under the curve of detection and the bytes.

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
        "losses": [event["loss"] for event in events if event["event"] == "round"],
        "accuracy": outcome.accuracy,
        "oos_auroc": None if auroc is None else auroc.value,
        "bytes": [outcome.cost.bytes_up, outcome.cost.bytes_down],
    }


def differences(found: Any, kept: Any, where: str = "") -> list[str]:
    """Returns where two measurements differ by more than the tolerance."""
    if isinstance(kept, dict) and isinstance(found, dict) and set(found) == set(kept):
        return [line for key in kept for line in differences(found[key], kept[key], f"{where}/{key}")]
    if isinstance(kept, list) and isinstance(found, list) and len(found) == len(kept):
        pairs = enumerate(zip(found, kept, strict=True))
        return [line for i, (one, two) in pairs for line in differences(one, two, f"{where}/{i}")]
    if isinstance(kept, float) and isinstance(found, float):
        same = math.isclose(found, kept, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    else:
        same = found == kept
    return [] if same else [f"{where}: {found}, was {kept}"]


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_numbers_stay_what_they_are(method: str, modality: str) -> None:
    kept = json.loads((GOLDEN / f"{method}.json").read_text(encoding="utf-8"))
    moved = differences(measure(method, modality), kept[modality])
    assert not moved, (
        f"{moved[:5]}: mend it; or raise ENGINE_VERSION (fcilbench/spec/identity.py), or the method's version if the "
        f"method changed, and run: python tests/test_golden.py {method}"
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(METHODS):
        record = {modality: measure(name, modality) for modality in MODALITIES}
        (GOLDEN / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
