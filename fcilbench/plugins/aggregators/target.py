"""TARGET: Zhang et al. 2023, "TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation" (ICCV).

First the method, then what the server does at the end of a task: the generator, the images, the student.
"""

from __future__ import annotations

import copy
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
from fcilbench.plugins.aggregators.lwf import distillation
from fcilbench.plugins.aggregators.synthesis import (
    NOISE,
    Generator,
    Images,
    SmoothedNorms,
    Student,
    TeacherImages,
    adam,
    augment,
    declined_text,
    disagreement,
    eight_bit,
    network_input,
    takes_channels_last,
)

_PEER = "fed-mammoth"
_BETAS = (0.5, 0.999)
"""Of Adam for the generator and z."""


class TargetParams(PresetParams):
    """Hyperparameters of TARGET."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "original": {
            "g_ep": 10,
            "synthesis_batch": 256,
            "g_steps": 10,
            "kd_steps": 400,
            "lr_student": 0.2,
            "gen_image_size": 32,
            "weighting": "uniform",
        }
    }

    lambda_kl: float = Field(
        25.0,
        ge=0,
        description="weight of the distillation; 0 is FedAvg, without synthesis",
        source="Zhang et al. 2023",
        space=Space(low=0.1, high=100.0, log=True),
    )
    tau: float = Field(2.0, gt=0, description="temperature of the clients' distillation", source="Zhang et al. 2023")
    g_ep: int = Field(30, ge=1, description="synthesis rounds, each of one batch", source="Kim and Do 2026")
    synthesis_batch: int = Field(16, ge=2, description="images of a round, and of a student's step", source=_PEER)
    g_steps: int = Field(80, ge=1, description="steps of the generator in a synthesis round", source=_PEER)
    kd_steps: int = Field(50, ge=0, description="steps of the student after a synthesis round", source=_PEER)
    warmup: int = Field(
        20, ge=0, description="first synthesis round with L_adv; the student is trained after it", source=_PEER
    )
    lr_g: float = Field(0.002, gt=0, description="learning rate of the generator", source=_PEER)
    lr_z: float = Field(0.01, gt=0, description="learning rate of the noise z", source=_PEER)
    lr_student: float = Field(0.002, gt=0, description="learning rate of the student", source=_PEER)
    bn: float = Field(10.0, ge=0, description="weight of L_BN", source="Zhang et al. 2023, CIFAR-100")
    oh: float = Field(0.5, ge=0, description="weight of the generator's cross-entropy", source="as bn")
    adv: float = Field(1.0, ge=0, description="weight of L_adv", source="as bn")
    bn_mmt: float = Field(0.9, ge=0, lt=1, description="smoothing of batch statistics over rounds", source="as bn")
    tau_student: float = Field(20.0, gt=0, description="temperature of the student's distillation", source="as bn")
    gen_image_size: int | None = Field(
        None, ge=4, description="height and width of the synthetic images; null: the backbone's input size"
    )
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weights of the mean update, by sample count or equal"
    )


class Target(TeacherImages):
    """TARGET: distils the previous global model on images that the server synthesises from it, without any data.

    From the second task on a client minimises L_CE + lambda L_KD. L_KD = -mean_u sum_c q_uc log s_uc over a batch of
    synthetic images u, with q = softmax(z_T / tau) of the teacher's and s = softmax(z / tau) of its own logits over the
    old classes; there is no factor tau^2. The teacher is the global model with which the task began. Models are
    averaged. At the end of a task, the last one excepted, `synthesise` makes the images for the next: `target/hit` logs
    the share of them that the teacher takes for the class they were made for.
    """

    version = "2"  # the same sums in another order
    card: ClassVar = {
        "family": "generators",
        "trained": "the whole model",
        "travels": "the model; synthetic images once a task",
        "memory": "nothing",
        "source": "Zhang et al. 2023, ICCV",
    }
    kit_params: ClassVar[Mapping[str, Any]] = {
        "g_ep": 2,
        "synthesis_batch": 4,
        "g_steps": 2,
        "kd_steps": 2,
        "warmup": 1,
    }

    class Params(TargetParams):
        """Hyperparameters of TARGET."""

    params: TargetParams

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines text backbones, for which the generator can make no inputs."""
        return declined_text("TARGET", request)

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy, plus lambda L_KD where there are synthetic images."""
        loss = masked_cross_entropy(net.logits(batch.inputs), batch)
        if batch.extra is None:
            return loss
        old, images = batch.task.offset, batch.extra.inputs
        with torch.no_grad():
            taught = net.under(context["teacher"]).logits(images)
        kept = distillation(net.logits(images)[:, :old], taught[:, :old], self.params.tau).mean()
        total: torch.Tensor = loss + self.params.lambda_kl * kept
        return total

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the mean update."""
        server.step(updates.mean(weighting=self.params.weighting))

    def _replays(self) -> bool:
        return self.params.lambda_kl != 0

    def _synthesise(self, server: Server) -> Images:
        return synthesise(server, self.params)


def synthesise(server: Server, params: TargetParams) -> Images:
    """Inverts the global model: returns images uint8 `[n, height, width, channels]` and their classes int64 `[n]`.

    n is `g_ep * synthesis_batch`. In rounds s = 1 .. g_ep a copy of the generator is trained with its noise for one
    batch of images (`Synthesis.images`); from round `warmup` on against a student, which after later rounds is
    distilled on all images so far (`Synthesis.teach`).
    """
    devices = [server.vector.device] if server.vector.device.type == "cuda" else []
    random = server.random("target")
    with torch.random.fork_rng(devices), torch.enable_grad(), ExitStack() as hooks:
        torch.manual_seed(int(random.integers(2**63)))  # initial weights, and dropout of the student
        synthesis = Synthesis(server, params, random, hooks)
        for number in range(1, params.g_ep + 1):
            synthesis.images(adversarial=number >= params.warmup)
            if number > params.warmup:
                synthesis.teach()
    images, labels = torch.cat(synthesis.pool), torch.cat(synthesis.labels)
    server.log("target/hit", float(torch.cat(synthesis.hits).float().mean()))
    return images.permute(0, 2, 3, 1).contiguous(), labels


class Synthesis:
    """Data-free synthesis with a meta-learned generator (Zhang et al. 2023, section 3.2, after Fast Meta DFKD).

    Attributes:
        pool: Images of each round so far, uint8 `[b, channels, height, width]`.
        labels: Their classes y, int64 `[b]`, drawn from all seen ones.
        hits: Whether the teacher takes them for these, bool `[b]`.
        student: Network of the teacher's architecture, with new weights.
    """

    def __init__(self, server: Server, params: TargetParams, random: np.random.Generator, hooks: ExitStack) -> None:
        assert server.image_input is not None  # `prepare` declines texts
        self.pool, self.labels, self.hits = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
        self._params, self._random, self._input = params, random, server.image_input
        self._channels_last = takes_channels_last(server.network)
        self._seen, self._device = server.tasks[-1].seen, server.vector.device
        self._teacher = server.net.under(server.vector.clone())
        self._student = Student(server.network, self._device, params.lr_student, 1e-4)
        self.student = self._student.network
        size = params.gen_image_size or max(self._input.shape)
        self.generator = Generator(self._input.channels, size).to(self._device)
        rate = params.lr_g * params.g_steps
        self._meta = adam(self.generator.parameters(), rate, _BETAS)
        self._norms = SmoothedNorms(server.network, params.bn_mmt, hooks)

    def images(self, adversarial: bool) -> None:
        """Adds the batch of least loss of `g_steps` steps of a copy of the generator and its noise.

        The generator itself takes one step of Adam along the sum of its copy's gradients (first-order MAML).
        """
        params, random = self._params, self._random
        noise = torch.from_numpy(random.standard_normal((params.synthesis_batch, NOISE), dtype=np.float32))
        z = noise.to(self._device).requires_grad_()
        labels = torch.from_numpy(random.integers(0, self._seen, params.synthesis_batch)).to(self._device)
        fast = copy.deepcopy(self.generator)
        best, kept = torch.full((), torch.inf, device=self._device), torch.zeros((), device=self._device)
        weights = list(fast.parameters())
        groups: list[dict[str, Any]] = [{"params": weights}, {"params": [z], "lr": params.lr_z}]
        optimiser = adam(groups, params.lr_g, _BETAS)
        self._meta.zero_grad()
        self.student.eval()
        for step in range(params.g_steps):
            images = fast(z)
            loss = self.generator_loss(images, labels, adversarial)
            better = loss.detach() < best
            best = torch.where(better, loss.detach(), best)
            kept = torch.where(better, images.detach(), kept) if step else images.detach()
            optimiser.zero_grad()
            loss.backward(inputs=[*weights, z])  # type: ignore[no-untyped-call]
            for own, copied in zip(self.generator.parameters(), weights, strict=True):
                assert copied.grad is not None
                own.grad = copied.grad.clone() if own.grad is None else own.grad.add_(copied.grad)
            optimiser.step()
        self._meta.step()
        self._norms.smooth()
        self.pool.append(eight_bit(kept))
        self.labels.append(labels)
        with torch.no_grad():
            taught = self._taught(self._shown(self.pool[-1] / 255.0))
        self.hits.append(taught.argmax(dim=1) == labels)

    def generator_loss(self, images: torch.Tensor, labels: torch.Tensor, adversarial: bool) -> torch.Tensor:
        """Returns L_G = bn L_BN + oh CE(teacher, y) + adv L_adv of images in [0, 1]; L_adv is minus `disagreement`."""
        params = self._params
        inputs = self._shown(augment(images, self._random))
        self._norms.total = images.new_zeros(())
        taught = self._taught(inputs)
        loss = params.bn * self._norms.total + params.oh * F.cross_entropy(taught, labels)
        if adversarial:
            own = self.student(inputs)[:, : self._seen]
            loss = loss - params.adv * disagreement(own, taught)
        total: torch.Tensor = loss
        return total

    def teach(self) -> None:
        """Distils the teacher into the student in `kd_steps` steps on batches of the pool: tau^2 KL, norm at most 1."""
        params, pool = self._params, torch.cat(self.pool)
        self.student.train()
        for _ in range(params.kd_steps):
            rows = self._random.choice(len(pool), params.synthesis_batch, replace=False)
            images = pool[torch.from_numpy(rows).to(self._device)] / 255.0
            inputs = self._shown(augment(images, self._random))
            with torch.no_grad():
                taught = (self._taught(inputs) / params.tau_student).softmax(dim=1)
            own = (self.student(inputs)[:, : self._seen] / params.tau_student).log_softmax(dim=1)
            loss = params.tau_student**2 * F.kl_div(own, taught, reduction="batchmean")
            self._student.learn(loss)

    def _shown(self, images: torch.Tensor) -> torch.Tensor:
        """Returns images in [0, 1] as teacher and student see them."""
        return network_input(images, self._input, self._channels_last)

    def _taught(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the teacher's logits over the seen classes."""
        return self._teacher.logits(inputs)[:, : self._seen]
