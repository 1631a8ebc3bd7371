"""What a method's own pass over a client's samples costs beside the training of the client.

    python -m benchmarks.passes [--beside REV] [--repeats 3] [--images 48] [--epochs 5]

Fisher information (EWC, FisherAvg) of 16 images beside a training step of as many, with a ViT-Tiny of 64 pixels: the
best processor seconds of several repeats in turns, and the peak of the resident set above that at the start, each in a
fork of its own. `--beside` also runs the pass as a revision of this repository has it. Then PILoRA's class means beside
a client's local training: processor seconds of one visit. One thread.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from benchmarks import common
from fcilbench.api import Batch, Client, Message, Task
from fcilbench.engine import fisher, meters
from fcilbench.engine.model import FlatModel, Network
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.pilora import PILoRA

CPU, IMAGES = torch.device("cpu"), 16


def revision(name: str) -> ModuleType:
    """Returns the module of the Fisher pass as a revision has it."""
    path = "fcilbench/engine/fisher.py"
    source = subprocess.run(["git", "show", f"{name}:{path}"], check=True, capture_output=True, text=True).stdout
    module = ModuleType("fisher_before")
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def ways(beside: str | None) -> dict[str, Callable[[], object]]:
    """Returns what is compared: a training step, and passes over the same batch."""
    torch.manual_seed(0)
    model = FlatModel(Network(common.WORKLOADS["vit-small"].backbone().build(), 10), CPU)
    images, labels = torch.randn(IMAGES, 3, 64, 64), torch.arange(IMAGES) % 10
    batches = [(Batch(images, labels, torch.ones(IMAGES), Task(0, 0, 10)), torch.rand(IMAGES, dtype=torch.float64))]
    names = [name for name, _ in model.network.named_parameters()]

    def step() -> None:
        model.gradient.zero_()
        F.cross_entropy(model.network.train()(images), labels).backward()

    def of(module: ModuleType) -> Callable[[], object]:
        return lambda: module.fisher_diagonal(model.network.eval(), names, batches, "sampled")

    found: dict[str, Callable[[], object]] = {"training step": step, "Fisher": of(fisher)}
    return found | ({f"Fisher, {beside}": of(revision(beside))} if beside else {})


def peak(function: Callable[[], object]) -> int:
    """Returns the bytes by which a call raises the resident set, in a fork."""

    def child(end: Any) -> None:
        gc.collect()
        meters.reset_peak_memory(CPU)
        before = meters.peak_memory(CPU)
        function()
        end.send(meters.peak_memory(CPU) - before)

    context = multiprocessing.get_context("fork")
    mine, other = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(other,))
    process.start()
    found: int = mine.recv()
    process.join()
    return found


def fisher_rows(beside: str | None, repeats: int) -> list[dict[str, Any]]:
    """Measures the Fisher pass."""
    functions = ways(beside)
    memory = {name: peak(function) for name, function in functions.items()}  # before anything has run here
    seconds = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.process_time()
            function()
            seconds[name] = min(seconds[name], time.process_time() - start)
    rows = [{"what": name, "processor_ms": 1000 * seconds[name], "peak_mb": memory[name] / 1e6} for name in functions]
    if beside:
        one, two = (functions[name]() for name in ("Fisher", f"Fisher, {beside}"))
        rows.append({"what": "largest relative difference", "processor_ms": difference(one, two), "peak_mb": "-"})
    return rows


def difference(one: Any, two: Any) -> float:
    """Returns the largest difference of two vectors, relative to the largest entry."""
    return float((one - two).abs().max() / two.abs().max())


def means_row(images: int, epochs: int) -> dict[str, Any]:
    """Measures PILoRA's pass for the class means beside the local training of one client."""
    spent: list[float] = []

    class Timed(PILoRA):
        def statistics(self, client: Client) -> Message:
            start = time.process_time()
            message = super().statistics(client)
            spent.append(time.process_time() - start)
            return message

    work = common.Workload("vit_tiny_patch16_224", common.SMALL, clients=1, images=images, epochs=epochs)
    clock = SimpleNamespace(perf_counter=time.process_time)
    with tempfile.TemporaryDirectory() as folder, patch.object(meters, "time", clock):
        run = common.experiment(work, Timed(), "cpu", "fp32", checkpoint="never")
        visit = run_experiment(run, Path(folder)).cost.training_s
    training = visit - sum(spent)
    return {"epochs": epochs, "training_s": training, "means_s": sum(spent), "means / training": sum(spent) / training}


def main() -> None:
    """Prints the two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--beside", help="a revision whose Fisher pass is measured as well")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=48, help="of PILoRA's client")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(common.origin())
    print(common.table(fisher_rows(options.beside, options.repeats)), flush=True)
    print(common.table([means_row(options.images, options.epochs)]))


if __name__ == "__main__":
    main()
