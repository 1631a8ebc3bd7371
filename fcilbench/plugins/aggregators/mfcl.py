"""MFCL: Babakniya et al. 2023 (NeurIPS).

"A Data-Free Approach to Mitigate Catastrophic Forgetting in Federated Class Incremental Learning for Vision Tasks".
First the method, then what the server does at the end of a task: the generator and its loss.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    Batch,
    Context,
    Field,
    Net,
    No,
    PresetParams,
    Request,
    Server,
    Space,
    Updates,
    masked_cross_entropy,
)
from fcilbench.plugins.aggregators.synthesis import (
    BatchNormLoss,
    Images,
    Maps,
    TeacherImages,
    UpConv,
    adam,
    declined_text,
    eight_bit,
    network_input,
    pixels,
    takes_channels_last,
)

_PAPER = "Babakniya et al. 2023, CIFAR-100"
_NOISE = 1000
"""Length of z."""
_COLD = 1000.0
"""Temperature of the generator's cross-entropy with the labels of the teacher."""
_LARGEST = 64
"""Height and width of the synthetic images for a backbone of larger inputs."""


class MfclParams(PresetParams):
    """Hyperparameters of MFCL."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"labels": "teacher", "weighting": "uniform"}}

    w_ft: float = Field(
        1.0,
        ge=0,
        description="weight of the head's cross-entropy over all classes; 0 with w_kd 0 is FedAvg, without synthesis",
        source=_PAPER,
        space=Space(low=0.1, high=3.0),
    )
    w_kd: float = Field(
        0.1,
        ge=0,
        description="weight of the distillation of features",
        source=_PAPER,
        space=Space(low=0.01, high=10.0, log=True),
    )
    pi: int = Field(100, ge=1, description="steps of the generator at the end of a task", source=_PAPER)
    synthesis_batch: int = Field(128, ge=2, description="images of a step of the generator", source=_PAPER)
    lr_g: float = Field(0.001, gt=0, description="learning rate of the generator", source=_PAPER)
    w_ie: float = Field(1.0, ge=0, description="weight of the diversity of classes", source=_PAPER)
    w_bn: float = Field(50.0, ge=0, description="weight of the BatchNorm statistics", source=_PAPER)
    w_noise: float = Field(0.001, ge=0, description="weight of the smoothness of images", source=_PAPER)
    n_syn: int = Field(2560, ge=1, description="images that clients get once a task", source="20 batches of the paper")
    gen_image_size: int | None = Field(
        None, ge=4, description=f"height and width of the images; null: the backbone's input size, at most {_LARGEST}"
    )
    labels: Literal["z", "teacher"] = Field(
        "z",
        description="class of an image: the largest of the first K numbers of its noise, or what the teacher says",
        source="Babakniya et al. 2023, algorithm 1; their code: teacher",
    )
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weights of the mean update, by sample count or equal"
    )


class Mfcl(TeacherImages):
    """MFCL: a generator that the server trains without data; its images keep the old classes of head and features.

    From the second task on a client minimises, on its own samples x and a batch of synthetic images u of o old classes,

        L = L_CE(x) + w_ft mean_all CE(head(stopgrad f), v) + w_kd mean_all (1/o) sum_c (W_old (f - f_old))_c^2

    with features f and those f_old of the model with which the task began, its head's rows W_old `[o, F]` of the old
    classes, labels v of own and synthetic samples, and a softmax over all seen classes in the second term, from which
    the head alone learns; from the third the features alone. Own and synthetic rows pass the network together. Models
    are averaged. At the end of a task, the last one excepted, `synthesise` trains the generator and makes the images
    for the next: `mfcl/hit` logs the share of them that the teacher takes for their label.
    """

    version = "1"
    card: ClassVar = {
        "family": "generators",
        "trained": "the whole model",
        "travels": "the model; synthetic images once a task",
        "memory": "nothing",
        "source": "Babakniya et al. 2023, NeurIPS",
    }
    kit_params: ClassVar[Mapping[str, Any]] = {"pi": 2, "synthesis_batch": 8, "n_syn": 12}

    class Params(MfclParams):
        """Hyperparameters of MFCL."""

    params: MfclParams

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines text backbones, and more classes than z has numbers."""
        if self.params.labels == "z" and request.classes > _NOISE:
            return No(f"MFCL's noise names {_NOISE} classes, and there are {request.classes}: set labels to teacher")
        return declined_text("MFCL", request)

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy, plus the two terms of replay where there are synthetic images."""
        if batch.extra is None:
            return super().loss(net, batch, context)
        params, task, extra = self.params, batch.task, batch.extra
        inputs, mask = torch.cat([batch.inputs, extra.inputs]), torch.cat([batch.mask, extra.mask])
        features, teacher = net.features(inputs), net.under(context["teacher"])
        with torch.no_grad():
            taught = teacher.features(inputs)
        loss = masked_cross_entropy(net.head(features[: len(batch.inputs)]), batch)
        labels = torch.cat([batch.labels, extra.labels])
        told = F.cross_entropy(net.head(features.detach())[:, : task.seen], labels, reduction="none")
        kept = feature_distances(features, taught, teacher.piece("head.weight")[: task.offset])
        rows = params.w_ft * told + params.w_kd * kept
        total: torch.Tensor = loss + (rows * mask).sum() / mask.sum()
        return total

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the mean update."""
        server.step(updates.mean(weighting=self.params.weighting))

    def _replays(self) -> bool:
        return not self.params.w_ft == self.params.w_kd == 0

    def _synthesise(self, server: Server) -> Images:
        return synthesise(server, self.params)


def feature_distances(features: torch.Tensor, taught: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Returns (1/o) sum_c (W_old (f - f_old))_c^2 of features `[B, F]` under the head's old rows `[o, F]`, `[B]`."""
    distances: torch.Tensor = F.linear(features - taught, head).square()
    return distances.mean(dim=1)


def synthesise(server: Server, params: MfclParams) -> Images:
    """Trains the generator on the global model: returns images uint8 `[n, height, width, channels]` and int64 `[n]`.

    The generator goes on from the last task's, with a new Adam; it is kept as `server.state["generator"]`.
    """
    device, kind = server.vector.device, server.image_input
    assert kind is not None  # `prepare` declines texts
    random, seen = server.random("mfcl"), server.tasks[-1].seen
    teacher, last = server.net.under(server.vector.clone()), takes_channels_last(server.network)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        torch.manual_seed(int(random.integers(2**63)))  # initial weights
        generator = Generator(kind.channels, params.gen_image_size or min(*kind.shape, _LARGEST)).to(device)
        if "generator" in server.state:
            generator.load_state_dict(server.state["generator"])
        optimiser = adam(generator.parameters(), params.lr_g)
        with ExitStack() as hooks:
            norms = Divergence(server.network, hooks)
            for _ in range(params.pi):
                z = _noise(params.synthesis_batch, random).to(device)
                made, norms.total = generator(z), z.new_zeros(())
                logits = teacher.logits(network_input(pixels(made, kind), kind, last))[:, :seen]
                loss = generator_loss(logits, z, params) + params.w_noise * roughness(made)
                loss = loss + params.w_bn / max(norms.layers, 1) * norms.total
                optimiser.zero_grad()
                loss.backward(inputs=list(generator.parameters()))  # type: ignore[no-untyped-call]
                optimiser.step()
    server.state["generator"] = {name: value.clone() for name, value in generator.state_dict().items()}
    images, labels, hits = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    generator.eval()
    with torch.no_grad():
        for z in torch.split(_noise(params.n_syn, random).to(device), params.synthesis_batch):
            images.append(eight_bit(pixels(generator(z), kind)))
            said = teacher.logits(network_input(images[-1] / 255.0, kind, last))[:, :seen].argmax(dim=1)
            labels.append(z[:, :seen].argmax(dim=1) if params.labels == "z" else said)
            hits.append(said == labels[-1])
    server.log("mfcl/hit", float(torch.cat(hits).float().mean()))
    return torch.cat(images).permute(0, 2, 3, 1).contiguous(), torch.cat(labels)


def generator_loss(logits: torch.Tensor, z: torch.Tensor, params: MfclParams) -> torch.Tensor:
    """Returns CE + w_ie (1 + sum_c pbar_c log pbar_c / log K) of the teacher's logits `[b, K]`.

    CE is that of the labels z, or of the teacher's own ones with all logits divided by 1000; pbar is the mean softmax
    of the batch, and its entropy is largest where all classes are equally frequent.
    """
    classes = logits.shape[1]
    if params.labels == "z":
        told = F.cross_entropy(logits, z[:, :classes].argmax(dim=1))
    else:
        told = F.cross_entropy(logits / _COLD, logits.argmax(dim=1))
    mean = logits.softmax(dim=1).mean(dim=0)
    entropy = -(mean * mean.clamp(min=1e-12).log()).sum()
    return told + params.w_ie * (1.0 - entropy / math.log(max(classes, 2)))


def roughness(images: torch.Tensor) -> torch.Tensor:
    """Returns mean (x - smooth(x))^2, where `smooth` weights 5x5 pixels by exp(-(d / 2)^2), d their distance."""
    line = torch.exp(-((torch.arange(5, device=images.device, dtype=images.dtype) - 2) / 2).square())
    kernel = torch.outer(line, line) / line.sum().square()
    channels = images.shape[1]
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    smooth = F.conv2d(padded, kernel.expand(channels, 1, 5, 5).contiguous(), groups=channels)
    return (images - smooth).square().mean()


def _noise(count: int, random: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(random.standard_normal((count, _NOISE), dtype=np.float32))


class Divergence(BatchNormLoss):
    """The sum over layers of the mean KL of two normal distributions: the batch's and that of the running statistics.

    KL = log(s / s_run) - (1 - (s_run^2 + (m_run - m)^2) / s^2) / 2 with deviations s and means m of a channel.
    """

    def apart(self, number: int, own: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Returns the mean divergence over the channels of a layer."""
        (mean, variance), (run_mean, run_variance) = own, running
        variance, run_variance = variance + 1e-8, run_variance + 1e-8
        logs = 0.5 * (variance / run_variance).log()
        rows: torch.Tensor = logs - 0.5 * (1.0 - (run_variance + (run_mean - mean).square()) / variance)
        return rows.mean()


class Generator(nn.Sequential):
    """Maps noise z `[b, 1000]` to normalised images `[b, channels, size, size]`, of mean 0 and variance 1 in a batch.

    Images of more than 64 pixels are doubled five times, with half the channels; those of more than 32 three times, and
    others twice. A size that this does not give is cut from the next larger one.
    """

    def __init__(self, channels: int, size: int) -> None:
        doublings = 2 if size <= 32 else 3 if size <= 64 else 5
        width = 64 if size > 64 else 128
        edge = -(-size // 2**doublings)
        widths = [width] * doublings + [64]
        layers: list[nn.Module] = [nn.Linear(_NOISE, width * edge**2), Maps(width, edge)]
        layers.append(nn.BatchNorm2d(width))
        for inputs, outputs in itertools.pairwise(widths):
            layers += [UpConv(inputs, outputs), nn.BatchNorm2d(outputs, eps=0.8), nn.LeakyReLU(0.2)]
        layers += [nn.Conv2d(64, channels, 3, padding=1), nn.Tanh(), nn.BatchNorm2d(channels, affine=False)]
        super().__init__(*layers)
        self.size = size

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Maps noise z `[b, 1000]` to normalised images `[b, channels, size, size]`, cut to the size."""
        images: torch.Tensor = super().forward(z)  # type: ignore[no-untyped-call]
        return images[..., : self.size, : self.size]
