"""DGR: Shin et al. 2017, "Continual Learning with Deep Generative Replay" (NeurIPS), federated by FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import field_validator
from torch import nn

from fcilbench.api import (
    Batch,
    Client,
    Context,
    Field,
    Net,
    Server,
    Space,
    masked_cross_entropy,
    seen_cross_entropy,
)
from fcilbench.plugins.aggregators.generative import (
    Gan,
    GanParams,
    GenerativeReplay,
    adam,
    chunked,
    descend,
    normal,
    taught,
)
from fcilbench.vectors.gan import Critic, Generator, wasserstein_critic_loss

_NOISE = 100
"""Length of z."""
_BETAS = (0.0, 0.9)
"""Of Adam, as Gulrajani et al. 2017 have them for WGAN-GP."""


class DGR(GenerativeReplay):
    """Deep Generative Replay: a solver, and a generator without labels whose images the last solver labels.

    From the second task on a client minimises r L_CE(x, y) + (1 - r) CE(u, v) with the new task's share r (`ratio`).
    u are images of G_{t-1}, the generator that the task before has left, and v = argmax_{c < o} z_{t-1}(u) their
    labels by its final global model; their softmax is over all classes seen, that of own samples over the task's. In
    the first task the loss is L_CE.

    After its local training a client trains generator G and critic D (WGAN-GP): `gan_steps` steps of D on

        -mean D(x) + mean D(G(z)) + penalty mean (1 - ||grad D(a x + (1 - a) G(z))||)^2,   a ~ U(0, 1), z ~ N(0, 1),

    after each `critic_steps` of which, and after the last, G takes one on -mean D(G(z)). A row x is the client's own
    with probability r, else one of G_{t-1}. G `[100] -> [channels, size, size]` and D are averaged as the model is.
    `dgr/classes` logs the share of the classes seen that the images are labelled as, `dgr/largest` the share of images
    of the most frequent one.

    The paper has one learner and no server. G and D begin each task where the last one has ended.
    """

    version = "1"
    card: ClassVar = {
        "family": "generators",
        "trained": "the whole model, a generator and a critic",
        "travels": "the model, generator and critic; generated images once a task",
        "memory": "nothing",
        "source": "Shin et al. 2017, NeurIPS",
    }
    kit_params: ClassVar[Mapping[str, Any]] = {
        "n_syn": 8,
        "gan_steps": 1,
        "gan_batch": 4,
        "gen_image_size": 8,
        "gen_width": 8,
    }

    class Params(GanParams):
        """Hyperparameters of DGR."""

        ratio: float | Literal["inverse"] = Field(
            0.5,
            description="share r of the new task in the losses; inverse: 1 / t in task t = 1, 2, ..; 1 is FedAvg",
            source="a port of the paper (kuc2477)",
            space=Space(low=0.1, high=0.9),
        )
        critic_steps: int = Field(1, ge=1, description="steps of the critic for one of the generator")
        penalty: float = Field(
            10.0, ge=0, description="weight of the critic's gradient penalty", source="Gulrajani et al. 2017"
        )

        @field_validator("ratio")
        @classmethod
        def _is_a_share(cls, ratio: float | Literal["inverse"]) -> float | Literal["inverse"]:
            if ratio != "inverse" and not 0 < ratio <= 1:
                raise ValueError("must be above 0 and at most 1, or inverse")
            return ratio

    params: Params

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy, mixed with that of the replayed images where there are some."""
        own = masked_cross_entropy(net.logits(batch.inputs), batch)
        if batch.extra is None:
            return own
        share = self._share(batch.task.index)
        total: torch.Tensor = share * own + (1 - share) * seen_cross_entropy(
            net.logits(batch.extra.inputs), batch.extra
        )
        return total

    def _share(self, index: int) -> float:
        """Returns r in the task with this index, from 0; 1 in the first."""
        ratio: float = 1 / (index + 1) if self.params.ratio == "inverse" else self.params.ratio
        return ratio if index > 0 else 1.0

    def _replays(self) -> bool:
        return super()._replays() and self.params.ratio != 1

    def _make(self, channels: int, size: int, classes: int) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        width = self.params.gen_width
        generator = lambda: Generator(_NOISE, channels, size, nn.Sigmoid(), width)  # noqa: E731
        return generator, partial(Critic, channels, size, 1, width)

    def _learn(
        self, client: Client, gan: Gan, last: nn.Module | None, images: torch.Tensor, labels: torch.Tensor
    ) -> None:
        (generator, critic), params, random = gan, self.params, client.random("dgr")
        generator_step, critic_step = adam(gan, params.lr_gan, _BETAS)
        z = partial(normal, params.gan_batch, _NOISE, random, images)
        share = self._share(client.task.index)
        for step in range(1, params.gan_steps + 1):
            real = images[torch.from_numpy(random.integers(0, len(images), params.gan_batch)).to(images.device)]
            with torch.no_grad():
                if last is not None:
                    real = mixed(real, last(z()), share, random)
                fake = generator(z())
            mix = torch.from_numpy(random.random(params.gan_batch, dtype=np.float32)).to(images)
            descend(critic_step, wasserstein_critic_loss(critic, real, fake, mix, params.penalty))
            if step % params.critic_steps == 0 or step == params.gan_steps:
                descend(generator_step, -critic(generator(z())).mean())

    def _draw(self, server: Server, generator: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        z = normal(self.params.n_syn, _NOISE, server.random("dgr"), server.vector)
        images = chunked(generator, z)
        labels = taught(server, images).argmax(dim=1)
        counts = torch.bincount(labels, minlength=server.tasks[-1].seen)
        server.log("dgr/classes", float((counts > 0).float().mean()))
        server.log("dgr/largest", float(counts.max()) / len(labels))
        return images, labels


def mixed(own: torch.Tensor, replayed: torch.Tensor, share: float, random: np.random.Generator) -> torch.Tensor:
    """Returns rows `[b, ...]` of which each is the client's own with probability `share`, else a replayed one."""
    new = torch.from_numpy(random.random(len(own)) < share).to(own.device)
    return torch.where(new.view(-1, *[1] * (own.dim() - 1)), own, replayed)
