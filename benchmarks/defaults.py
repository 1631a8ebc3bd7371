"""What the defaults of DualPrompt, Fed-CPrompt and FOT do on the small ViT: the numbers that their pages quote.

    python -m benchmarks.defaults ROOT

ROOT holds EuroSAT_RGB/ and weights/ with the small ViT. Five clients, five tasks, two rounds of two epochs, 40 training
images a class, one seed, prompts at a learning rate of 0.005. First how often DualPrompt picks the prompt of the true
task, with keys as they are drawn and 50 times as long; then how far a client's round moves Fed-CPrompt's prompts in the
first task; then the share of the inputs' energy that FOT's bases hold with each width of a sketch.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import common
from fcilbench.api import BARE, Aggregator, Context, Net, Server, Updates
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import Experiment, RoundContext, build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.codap import piece_name
from fcilbench.plugins.aggregators.dualprompt import DualPrompt, nearest
from fcilbench.plugins.aggregators.fed_cprompt import FedCPrompt
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fot import directions, projected
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.datasets.eurosat import EuroSat
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Evaluation, Partition, Protocol, Runtime

WEIGHTS = "vit_tiny_patch8_64.tiny_imagenet.safetensors"
EPS = 0.9


class Keys(DualPrompt):
    """DualPrompt that draws its keys longer, and notes its last model."""

    longer = 1.0

    def begin_task(self, server: Server) -> None:
        """Draws the task's key, and stretches it."""
        super().begin_task(server)
        span = server.layout.piece(f"extractor.tasks.{server.task.index}.key").span
        server.step((self.longer - 1.0) * server.vector[span], span)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Notes the model."""
        super().aggregate(updates, server)
        self.last, self.parts = server.vector.clone(), server.layout


class Prompts(FedCPrompt):
    """Fed-CPrompt that notes, in the first task, the gradient of its prompts and how far a round moves them."""

    def __init__(self, params: FedCPrompt.Params) -> None:
        super().__init__(params)
        self.gradients: list[float] = []
        self.moves: list[float] = []

    def gradient(self, gradient: torch.Tensor, net: Net, context: Context) -> None:
        """Notes the norm of the gradient by the task's prompts."""
        if net.task.index == 0:
            self.gradients.append(float(gradient[net.layout.piece(piece_name(0, "prompts")).span].norm()))

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Notes how far each client has moved the task's prompts."""
        if server.task.index == 0:
            moved = updates.delta[:, updates.layout.piece(piece_name(0, "prompts")).span]
            self.moves += [float(row.norm()) for row in moved]
        super().aggregate(updates, server)


def experiment(root: Path, aggregator: Aggregator, **changes: Any) -> Experiment:
    """Returns the experiment that all measurements share."""
    small = {"model": "vit_tiny_patch16_224", "weights": WEIGHTS, "args": common.SMALL}
    protocol = {"clients": 5, "rounds": 2, "local_epochs": 2, "batch_size": 16, "lr": 5e-3, **changes}
    return Experiment(
        dataset=EuroSat(EuroSat.Params(train_per_class=40, test_per_class=50)),
        backbone=Timm(Timm.Params(**small)),
        aggregator=aggregator,
        stressor=NoStress(),
        data_root=root,
        protocol=Protocol.model_validate(protocol),
        partition=Partition(kind="dirichlet", value=0.5),
        tasks=5,
        evaluate=Evaluation(task_identity=("none",)),
        runtime=Runtime(threads=1),
        device="cpu",
    )


def keys(root: Path, longer: float) -> dict[str, Any]:
    """Returns how often the key of the true task is the nearest of all five, and its mean cosine to its queries."""
    method = Keys()
    method.longer = longer
    ran = experiment(root, method)
    with tempfile.TemporaryDirectory() as folder:
        run_experiment(ran, Path(folder))
    federation = build(experiment(root, DualPrompt()))
    net = federation.model.under(federation.initial)
    own = torch.stack([method.last[method.parts.piece(f"extractor.tasks.{task}.key").span] for task in range(5)])
    hits, cosines = [], []
    for task, index in enumerate(federation.test_index):
        with torch.no_grad():
            query = net.outputs(federation.test.plain(index), BARE)["features"]
        hits += (nearest(query, own) == task).float().tolist()
        cosines.append(float(F.cosine_similarity(query, own[task][None]).mean()))
    return {"keys from U(-a, a), a": 0.02 * longer, "hit": statistics.fmean(hits), "cosine": statistics.fmean(cosines)}


def prompts(root: Path, strength: float) -> dict[str, Any]:
    """Returns the norms of the gradient by prompts, and how far a client's round moves them."""
    method = Prompts(FedCPrompt.Params(lambda_c2l=strength))
    with tempfile.TemporaryDirectory() as folder:
        run_experiment(experiment(root, method), Path(folder))
    low, high = min(method.gradients), max(method.gradients)
    return {"lambda": strength, "least gradient": low, "largest": high, "moved": statistics.fmean(method.moves)}


def energies(root: Path) -> list[dict[str, Any]]:
    """Returns the share of the inputs' energy in FOT's basis, by the layer's inputs and the sketch's columns."""
    federation = build(experiment(root, FedAvg(), clients=1))
    client = ClientSession(federation, RoundContext(federation.schedule.phases[0], 0), 0)
    federation.model.network.eval()
    layers = projected(client.network)
    parts: dict[str, list[torch.Tensor]] = defaultdict(list)
    with torch.no_grad():
        for inputs in client.inputs(list(layers)):
            for name, rows in inputs.items():
                parts[name].append(rows.double())
    numbers = torch.Generator().manual_seed(0)
    shares: dict[tuple[int, int], list[float]] = defaultdict(list)
    for own in parts.values():
        rows = torch.cat(own)
        size = rows.shape[1]
        for width in sorted({min(256, size), size, 5 * size}):
            sketch = rows.T @ torch.randn(len(rows), width, dtype=torch.float64, generator=numbers)
            basis = directions(sketch, EPS)
            shares[size, width].append(float((rows @ basis).square().sum() / rows.square().sum()))
    return [
        {"inputs": size, "columns": width, "layers": len(found), "energy": statistics.fmean(found), "least": min(found)}
        for (size, width), found in sorted(shares.items())
    ]


def main(root: Path) -> None:
    """Prints the three tables."""
    torch.set_num_threads(1)
    print(common.origin(), "\n")
    print("DualPrompt:", common.table([keys(root, longer) for longer in (50.0, 1.0)]), "", sep="\n")
    print("Fed-CPrompt:", common.table([prompts(root, each) for each in (0.0, 1e-3, 1e-2, 1.0)]), "", sep="\n")
    print(f"FOT, eps {EPS}:", common.table(energies(root)), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
