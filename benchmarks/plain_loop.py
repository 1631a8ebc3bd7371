"""The same FedAvg round as research code usually writes it, timed in turn with ours in one run.

A DataLoader per client with per-image transforms, a deep copy of the model per client, `.item()` every step, client
models parked on the CPU, state dicts averaged key by key. Written for this comparison; nobody's code.

    python benchmarks/plain_loop.py --workload vit-small-cpu
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms

from benchmarks import common
from fcilbench.engine.meters import Stopwatch
from fcilbench.engine.model import Network
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.federation.round import run_round, update_rows
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.backbones.timm import Timm


class Images(TorchDataset):
    """One client's images with the transforms of a torchvision script."""

    def __init__(self, pixels: Any, labels: Any, size: int) -> None:
        self._pixels, self._labels = pixels, labels
        self._transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.Resize(size, interpolation=transforms.InterpolationMode.BICUBIC),
                transforms.ToTensor(),
                transforms.Normalize((0.5,) * 3, (0.5,) * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._transform(Image.fromarray(self._pixels[index])), int(self._labels[index])


def plain_round(network: Network, clients: list[Images], work: common.Workload, device: str, precision: str) -> None:
    """Trains every client and averages them."""
    parked = []
    for images in clients:
        model = copy.deepcopy(network).to(device)
        model.train()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
        loader = DataLoader(images, batch_size=work.batch_size, shuffle=True, num_workers=0 if device == "cpu" else 4)
        for _ in range(work.epochs):
            running = 0.0
            for inputs, labels in loader:
                with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
                    loss = F.cross_entropy(model(inputs.to(device)), labels.to(device))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                running += loss.item()
        parked.append(model.cpu().state_dict())
    weights = [len(images) / sum(map(len, clients)) for images in clients]
    merged = {key: sum(w * state[key] for w, state in zip(weights, parked, strict=True)) for key in parked[0]}
    network.load_state_dict(merged)


def our_round(work: common.Workload, device: str, precision: str) -> Callable[[int], None]:
    """Returns a function that runs our round of a number."""
    federation = build(common.experiment(work, FedAvg(), device, precision))
    federation.server.enter(federation.schedule.phases[0].task, 0)
    rows = update_rows(federation)

    def run(number: int) -> None:
        turn = RoundContext(federation.schedule.phases[0], number)
        run_round(federation, turn, rows, Stopwatch(torch.device(device)))

    return run


def their_round(work: common.Workload, device: str, precision: str) -> Callable[[int], None]:
    """Returns a function that runs the plain loop's round."""
    corpus = common.Noise(work.clients * work.images).load(Path())
    size = work.args.get("img_size", 224)
    shards = [slice(i * work.images, (i + 1) * work.images) for i in range(work.clients)]
    clients = [Images(corpus.train.inputs[part], corpus.train.labels[part], size) for part in shards]
    network = Network(Timm(Timm.Params(model=work.model, weights="none", args=work.args)).build(), 10)
    return lambda _: plain_round(network, clients, work, device, precision)


def main() -> None:
    """Times the loops, `--repeats` times in turn, and prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=common.WORKLOADS, default="vit-small-cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default=None, help="fp32, bf16 or both: fp32,bf16; by default bf16 on a GPU")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    work = common.WORKLOADS[options.workload]
    loops = {
        f"{name}, {precision}": make(work, device, precision)
        for precision in (options.precision or ("bf16" if device == "cuda" else "fp32,bf16")).split(",")
        for name, make in (("plain loop", their_round), ("fcilbench", our_round))
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(options.repeats + 1):
        for name, run in loops.items():
            start = time.perf_counter()
            run(number)
            if device == "cuda":
                torch.cuda.synchronize()
            if number > 0:  # the first of each warms up
                times[name].append(time.perf_counter() - start)
    medians = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
    first = next(iter(medians.values()))
    result = [{"loop": name, "round_s": seconds, "speed-up": first / seconds} for name, seconds in medians.items()]
    print(f"{options.workload}, {common.card(device)}, {options.repeats} rounds each; speed-up over the first line")
    print(common.table(result))
    common.write(options.json, f"plain_loop/{options.workload}", device, result)


if __name__ == "__main__":
    main()
