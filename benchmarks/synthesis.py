"""How fast the server synthesises images, beside the same mathematics in the operations that it is written in.

    python -m benchmarks.synthesis [--images 16] [--repeats 3] [--threads 1] [--json FILE]

A step of TARGET's generator against the teacher, and with L_adv against the student too, and one of MFCL's, with a
ViT-Tiny and a ResNet-18 of 64 pixels, without weights. `written` upsamples and then convolves, takes `torch.var` of
each layer, leaves images with their channels first, and has the unfused Adam; `ours` is what runs. Both of one line
come from one run and are timed in turns, in processor seconds, each the best of several repeats. `difference` is that
of the generator's gradient in its first step, relative to its norm, in float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import common
from fcilbench.federation.experiment import build
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators import mfcl, synthesis, target
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.synthesis import UpConv
from fcilbench.plugins.backbones.timm import Timm

NETWORKS = {
    "vit-tiny": Timm.Params(model="vit_tiny_patch16_224", weights="none", args=common.SMALL),
    "resnet18": Timm.Params(model="resnet18", weights="none", input_size=64),
}
STEPS = 4


def upsampled(self: UpConv, images: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.interpolate(images, scale_factor=2.0, mode="nearest"), self.weight, self.bias, padding=1)


def moments(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), unbiased=False)])


def unfused(groups: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.Adam:
    return torch.optim.Adam(groups, lr=lr, betas=betas)


@contextmanager
def written():
    """Within this block the plain operations run."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(UpConv, "forward", upsampled))
        stack.enter_context(patch.object(synthesis, "moments", moments))
        stack.enter_context(patch.object(synthesis, "layout", lambda *_: torch.contiguous_format))
        for module in (target, mfcl):
            stack.enter_context(patch.object(module, "adam", unfused))
        yield


def server_of(network: Timm.Params) -> FederationServer:
    work = common.Workload("vit_tiny_patch16_224", common.SMALL, clients=2, images=10, epochs=1, tasks=2)
    experiment = common.experiment(work, FedAvg(), "cpu", "fp32")
    return build(replace(experiment, backbone=Timm(network))).server


def target_steps(server: FederationServer, images: int, adversarial: bool) -> tuple[Callable[[], object], torch.Tensor]:
    """Returns what is timed, and the generator's gradient at its first step, in float64."""
    params = target.TargetParams(synthesis_batch=images, g_steps=STEPS, gen_image_size=64)
    with ExitStack() as hooks:
        torch.manual_seed(0)
        run = target.Synthesis(server, params, np.random.default_rng(0), hooks)
        run.student.double().eval()
        run._teacher = server.net.under(server.vector.double())
        made = run.generator.double()(torch.randn(images, synthesis.NOISE).double())
        found = gradient(run.generator_loss(made, torch.zeros(images).long(), adversarial), run.generator)
    run = target.Synthesis(server, params, np.random.default_rng(0), ExitStack())
    return lambda: run.images(adversarial), found


def mfcl_steps(server: FederationServer, images: int) -> tuple[Callable[[], object], torch.Tensor]:
    params = mfcl.MfclParams(synthesis_batch=images, pi=STEPS, n_syn=1, gen_image_size=64)
    torch.manual_seed(0)
    generator, z, kind = mfcl.Generator(3, 64).double(), torch.randn(images, 1000).double(), server.image_input
    assert kind is not None
    with ExitStack() as hooks:
        norms = mfcl.Divergence(server.network, hooks)
        shown = synthesis.network_input(synthesis.pixels(generator(z), kind), kind)
        logits = server.net.under(server.vector.double()).logits(shown)
        found = gradient(mfcl.generator_loss(logits, z, params) + norms.total, generator)
    return lambda: mfcl.synthesise(server, params), found


def gradient(loss: torch.Tensor, generator: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(generator.parameters()))])


WAYS: dict[str, Callable[[FederationServer, int], tuple[Callable[[], object], torch.Tensor]]] = {
    "target": lambda server, images: target_steps(server, images, adversarial=False),
    "target, L_adv": lambda server, images: target_steps(server, images, adversarial=True),
    "mfcl": mfcl_steps,
}


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def measure(network: str, method: str, images: int, repeats: int) -> dict[str, Any]:
    with written():
        plainly, expected = WAYS[method](server_of(NETWORKS[network]), images)
    ours, found = WAYS[method](server_of(NETWORKS[network]), images)
    best = {"written": float("inf"), "ours": float("inf")}
    for turn in range(repeats + 1):  # the first turn warms up
        with written():
            plain = seconds(plainly)
        mine = seconds(ours)
        if turn:
            best = {"written": min(best["written"], plain), "ours": min(best["ours"], mine)}
    return {
        "method": method,
        "network": network,
        "images": images,
        **{f"{name} ms/step": 1000 * value / STEPS for name, value in best.items()},
        "written / ours": best["written"] / best["ours"],
        "difference": float((found - expected).norm() / expected.norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=16, help="images of a step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="torch CPU threads")
    parser.add_argument("--methods", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{common.origin()}, {common.card('cpu')}, torch {torch.__version__}\n")
    rows: list[dict[str, Any]] = []
    for method in options.methods:
        for network in options.networks:
            rows.append(measure(network, method, options.images, options.repeats))
            print(common.table(rows[-1:]))
    print(f"\n{common.table(rows)}")
    common.write(options.json, "synthesis", "cpu", rows)


if __name__ == "__main__":
    main()
