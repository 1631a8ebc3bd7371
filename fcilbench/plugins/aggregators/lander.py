"""LANDER: Tran et al. 2024, "Text-Enhanced Data-free Approach for Federated Class-Incremental Learning" (CVPR).

First the method, then what the server does at the end of a task: the images and the student.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F

from fcilbench.api import (
    Batch,
    Context,
    Field,
    Message,
    Net,
    No,
    PresetParams,
    Request,
    Server,
    Space,
    Updates,
    distillation,
    file_digest,
    masked_cross_entropy,
)
from fcilbench.plugins.aggregators.anchors import (
    SQUARE,
    Anchored,
    AnchoredGenerator,
    distances,
    embedded,
    radius,
    source_files,
)
from fcilbench.plugins.aggregators.synthesis import (
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
    pixels,
    takes_channels_last,
)

_CODE = "tmtuan1307/lander"
_TARGET = "as TARGET's"
_TAU, _TAU_STUDENT = 2.0, 20.0
"""Temperatures of the clients' and of the student's distillation."""
_BETAS = (0.5, 0.999)
"""Of Adam."""
_MOMENTUM = 0.9
"""Smoothing of batch statistics over rounds."""
_QUIET = 3
"""Rounds from `warmup` on that are still without L_adv."""
_LARGEST = 64
"""Height and width of the synthetic images for a backbone of larger inputs."""


class LanderParams(PresetParams):
    """Hyperparameters of LANDER."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "original": {
            "bound": "batch",
            "r": 0.015,
            "warmup": 10,
            "syn_round": 40,
            "synthesis_batch": 256,
            "g_steps": 40,
            "gen_image_size": 32,
            "weighting": "uniform",
        }
    }

    anchors: str = Field(
        "minilm",
        description="embeddings of the class names: minilm (the sentence encoder of the extra offline), random, or an "
        ".npz file with a vector for each class name, looked for as weights are",
        source="the authors have a larger text encoder",
    )
    bound: Literal["sample", "batch"] = Field(
        "sample",
        description="the hinge of each sample's distance to its anchor, or one of the batch's mean distance",
        source=f"Tran et al. 2024; {_CODE}: batch",
    )
    r: float | None = Field(
        None, ge=0, description="radius, the mean square distance that costs nothing; null: r_share of the anchors' own"
    )
    r_share: float = Field(
        0.185,
        ge=0,
        description="radius as a share of the mean square distance of two anchors",
        source=f"{_CODE}, where .015 is this share of .081",
        space=Space(low=0.046, high=0.74, log=True),
    )
    ltc: float = Field(
        5.0, ge=0, description="weight of the bounding loss", source=_CODE, space=Space(low=0.1, high=50.0, log=True)
    )
    cur: float = Field(0.2, ge=0, description="weight of the current task, before its scale", source=_CODE)
    pre: float = Field(
        0.4,
        ge=0,
        description="weight of the earlier tasks, before its scale",
        source=_CODE,
        space=Space(low=0.05, high=5.0, log=True),
    )
    warmup: int = Field(20, ge=0, description="synthesis round from which on images are kept", source=_TARGET)
    syn_round: int = Field(30, ge=1, description="synthesis rounds after the warm-up", source=_TARGET)
    synthesis_batch: int = Field(16, ge=2, description="images of a round, and of a student's step", source=_TARGET)
    g_steps: int = Field(80, ge=1, description="steps of the generator in a synthesis round", source=_TARGET)
    kd_steps: int = Field(50, ge=0, description="steps of the student after a synthesis round", source=_CODE)
    lr_g: float = Field(0.002, gt=0, description="learning rate of the generator", source=_CODE)
    lr_student: float = Field(0.1, gt=0, description="learning rate of the student", source=_CODE)
    bn: float = Field(1.0, ge=0, description="weight of L_BN", source=_CODE)
    oh: float = Field(0.5, ge=0, description="weight of the generator's cross-entropy", source=_CODE)
    adv: float = Field(1.0, ge=0, description="weight of L_adv", source=_CODE)
    gen_image_size: int | None = Field(
        None, ge=4, description=f"height and width of the images; null: the backbone's input size, at most {_LARGEST}"
    )
    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="weights of the mean update, by sample count or equal"
    )


class Lander(TeacherImages):
    """LANDER: features are drawn to embeddings of the class names, around which the server synthesises images.

    A linear map att = M f + b of the features f is trained beside the head. With anchors a_c of the classes and

        BL = mean_i relu(mean (att_i - a_{y_i})^2 - r)

    a client minimises L_CE + ltc BL in the first task. Later, with o old of K seen classes, al = log2(K / 2 + 1),
    be = sqrt(o / K) and a batch of synthetic images u, it minimises

        cur (1 + 1 / al) / be (L_CE + ltc BL) + pre al be (L_KD + mean (att(u) - att_T(u))^2)

    where T is the model with which the task began and L_KD the distillation of LwF at temperature 2. Models are
    averaged. At the end of a task, the last one excepted, `synthesise` makes the images for the next:
    `lander/hit` logs the share of them that the teacher takes for the class they were made for, and `lander/outside`
    the share whose distance to the anchor is above r.
    """

    version = "2"  # other names of the network's pieces
    card: ClassVar = {
        "family": "generators",
        "trained": "the whole model, and a map to the anchors",
        "travels": "what is trained; anchors once, synthetic images once a task",
        "memory": "nothing",
        "source": "Tran et al. 2024, CVPR",
    }
    kit_params: ClassVar[Mapping[str, Any]] = {
        "anchors": "random",
        "warmup": 1,
        "syn_round": 2,
        "synthesis_batch": 4,
        "g_steps": 2,
        "kd_steps": 2,
    }

    class Params(LanderParams):
        """Hyperparameters of LANDER."""

    params: LanderParams

    def prepare(self, network: Any, request: Request) -> No | None:
        """Adds the map to the anchors; declines text backbones."""
        if declined := declined_text("LANDER", request):
            return declined
        network.extractor = Anchored(network.extractor, embedded(self.params.anchors, request.class_names))
        return None

    def identity(self) -> dict[str, Any]:
        """Returns the hyperparameters, with the digest of the file that anchors come from."""
        digests = [f"sha256:{file_digest(path)}" for path in self.files()]
        return super().identity() | ({"anchors": digests[0]} if digests else {})

    def files(self) -> list[Path]:
        """Returns the weights of the sentence encoder, or the file of anchors."""
        return source_files(self.params.anchors)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the mean update."""
        server.step(updates.mean(weighting=self.params.weighting))

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy and the bounding loss, and where there are images what holds them."""
        params, task, anchors = self.params, batch.task, context["anchors"]
        found = net.outputs(batch.inputs)
        limit = radius(anchors, params.r, params.r_share)
        bound = bounding(batch, distances(found["att"], anchors[batch.labels]), limit, params.bound)
        own = masked_cross_entropy(net.head(found["features"]), batch) + params.ltc * bound
        if batch.extra is None:
            return own
        images, teacher = batch.extra.inputs, net.under(context["teacher"])
        with torch.no_grad():
            taught = teacher.outputs(images)
            told = teacher.head(taught["features"])[:, : task.offset]
        found = net.outputs(images)
        kept = distillation(net.head(found["features"])[:, : task.offset], told, _TAU).mean()
        current, previous = scales(task.offset, task.seen, params)
        total: torch.Tensor = current * own + previous * (kept + (found["att"] - taught["att"]).square().mean())
        return total

    def begin(self, server: Server) -> None:
        """Keeps the anchors, which clients get once."""
        extractor: Any = server.network.extractor
        anchors = server.state["anchors"] = extractor.anchors.clone()
        if float(radius(anchors, self.params.r, self.params.r_share)) >= SQUARE:
            server.warn(f"LANDER's radius is {SQUARE} or more: the bounding loss of features near 0 is 0")

    def broadcast(self, server: Server) -> Message:
        """Sends anchors and teacher, to whom they are new; no teacher in the first task."""
        return {"anchors": server.state["anchors"], **super().broadcast(server)}

    def _synthesise(self, server: Server) -> Images:
        return synthesise(server, self.params)


def bounding(batch: Batch, apart: torch.Tensor, limit: torch.Tensor | float, bound: str) -> torch.Tensor:
    """Returns BL: what of the samples' distances `[B]` is above the radius, by sample or of their mean."""
    return F.relu(batch.mean(apart) - limit) if bound == "batch" else batch.mean(F.relu(apart - limit))


def scales(old: int, seen: int, params: LanderParams) -> tuple[float, float]:
    """Returns the weights of the current task and of the earlier ones."""
    al, be = math.log2(seen / 2 + 1), math.sqrt(old / seen)
    return params.cur * (1 + 1 / al) / be, params.pre * al * be


def synthesise(server: Server, params: LanderParams) -> Images:
    """Inverts the global model: returns images uint8 `[n, height, width, channels]` and their classes int64 `[n]`.

    In each of `warmup + syn_round` rounds the generator gets new layers of noise and is trained for one batch of
    images (`Synthesis.images`). From round `warmup` on they are kept, and after the round the student is distilled on
    all images so far (`Synthesis.teach`).
    """
    devices = [server.vector.device] if server.vector.device.type == "cuda" else []
    random = server.random("lander")
    with torch.random.fork_rng(devices), torch.enable_grad(), ExitStack() as hooks:
        torch.manual_seed(int(random.integers(2**63)))  # initial weights, layers of noise, dropout of the student
        synthesis = Synthesis(server, params, random, hooks)
        for number in range(1, params.warmup + params.syn_round + 1):
            made, labels = synthesis.images(adversarial=number >= params.warmup + _QUIET)
            if number >= params.warmup:
                synthesis.keep(made, labels)
                synthesis.teach()
    for name in ("hit", "outside"):
        server.log(f"lander/{name}", float(torch.cat(synthesis.found[name]).float().mean()))
    images, labels = torch.cat(synthesis.pool), torch.cat(synthesis.labels)
    return images.permute(0, 2, 3, 1).contiguous(), labels


class Synthesis:
    """Data-free synthesis from anchors with layers of noise (Tran et al. 2024, section 3.3).

    Attributes:
        pool: Images of each round that are kept, uint8 `[b, channels, height, width]`.
        labels: Their classes y, int64 `[b]`.
        found: Whether the teacher takes them for these (`hit`), and whether their distance to the anchor is above the
            radius (`outside`), bool `[b]`.
        student: Network of the teacher's architecture, with new weights.
    """

    def __init__(self, server: Server, params: LanderParams, random: np.random.Generator, hooks: ExitStack) -> None:
        assert server.image_input is not None  # `prepare` declines texts
        self.pool, self.labels = list[torch.Tensor](), list[torch.Tensor]()
        self.found: dict[str, list[torch.Tensor]] = {"hit": [], "outside": []}
        self._params, self._random, self._input = params, random, server.image_input
        self._channels_last = takes_channels_last(server.network)
        self._seen, self._device = server.tasks[-1].seen, server.vector.device
        self._anchors = server.state["anchors"]
        self._limit = radius(self._anchors, params.r, params.r_share)
        self._teacher = server.net.under(server.vector.clone())
        self._student = Student(server.network, self._device, params.lr_student, 2e-4)
        self.student = self._student.network
        size, width = params.gen_image_size or min(*self._input.shape, _LARGEST), self._anchors.shape[1]
        generator = AnchoredGenerator(self._input, size, width, params.synthesis_batch, self._seen)
        self.generator = generator.to(self._device)
        self._norms = SmoothedNorms(server.network, _MOMENTUM, hooks)

    def images(self, adversarial: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the batch of least loss of `g_steps` steps of the generator, in [0, 1], and its classes.

        Classes are all seen ones in a random order, again and again.
        """
        params = self._params
        classes = np.resize(self._random.permutation(self._seen), params.synthesis_batch)
        labels = torch.from_numpy(classes).to(self._device)
        self.generator.renew()
        optimiser = adam(self.generator.groups(params.lr_g), params.lr_g, _BETAS)
        self.student.eval()
        best, kept = torch.full((), torch.inf, device=self._device), torch.zeros((), device=self._device)
        for step in range(params.g_steps):
            made = pixels(self.generator(self._anchors[labels]), self._input)
            loss = self.generator_loss(made, labels, adversarial)
            better = loss.detach() < best
            kept = torch.where(better, made.detach(), kept) if step else made.detach()
            best = torch.where(better, loss.detach(), best)
            optimiser.zero_grad()
            loss.backward(inputs=list(self.generator.parameters()))  # type: ignore[no-untyped-call]
            optimiser.step()
        self._norms.smooth()
        return kept, labels

    def generator_loss(self, images: torch.Tensor, labels: torch.Tensor, adversarial: bool) -> torch.Tensor:
        """Returns L_G = bn L_BN + oh CE(teacher, y) + adv L_adv + ltc BL of images in [0, 1]; L_adv as TARGET."""
        params = self._params
        inputs = self._shown(augment(images, self._random))
        self._norms.total = images.new_zeros(())
        att, taught = self._taught(inputs)
        apart = distances(att, self._anchors[labels])
        bound = apart.mean() if params.bound == "batch" else apart
        loss = params.bn * self._norms.total + params.oh * F.cross_entropy(taught, labels)
        loss = loss + params.ltc * F.relu(bound - self._limit).mean()
        if adversarial:
            own = self.student(inputs)[:, : self._seen]
            loss = loss - params.adv * disagreement(own, taught)
        total: torch.Tensor = loss
        return total

    @torch.no_grad()
    def keep(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Adds a batch to the pool, in 8 bits, with what the teacher says of it."""
        self.pool.append(eight_bit(images))
        self.labels.append(labels)
        att, taught = self._taught(self._shown(self.pool[-1] / 255.0))
        self.found["hit"].append(taught.argmax(dim=1) == labels)
        self.found["outside"].append(distances(att, self._anchors[labels]) > self._limit)

    def teach(self) -> None:
        """Distils the teacher into the student on batches of the pool: 400 KL at temperature 20, and ltc mse(att)."""
        params, pool = self._params, torch.cat(self.pool)
        self.student.train()
        for _ in range(params.kd_steps):
            rows = self._random.choice(len(pool), params.synthesis_batch, replace=False)
            images = pool[torch.from_numpy(rows).to(self._device)] / 255.0
            inputs = self._shown(augment(images, self._random))
            with torch.no_grad():
                att, taught = self._taught(inputs)
            found = self.student(inputs, "outputs")
            own = self.student(found["features"], "head")[:, : self._seen]
            own, told = (own / _TAU_STUDENT).log_softmax(dim=1), (taught / _TAU_STUDENT).softmax(dim=1)
            loss = _TAU_STUDENT**2 * F.kl_div(own, told, reduction="batchmean")
            self._student.learn(loss + params.ltc * (found["att"] - att).square().mean())

    def _shown(self, images: torch.Tensor) -> torch.Tensor:
        """Returns images in [0, 1] as teacher and student see them."""
        return network_input(images, self._input, self._channels_last)

    def _taught(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the teacher's `att`, and its logits over the seen classes."""
        found = self._teacher.outputs(inputs)
        return found["att"], self._teacher.head(found["features"])[:, : self._seen]
