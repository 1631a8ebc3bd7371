"""FedCIL: Qi et al. 2023, "Better Generative Replay for Continual Federated Learning" (ICLR)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    Batch,
    Client,
    Context,
    Field,
    Message,
    Net,
    PresetParams,
    Server,
    Space,
    Updates,
    masked_cross_entropy,
    seen_cross_entropy,
)
from fcilbench.plugins.aggregators.generative import (
    Gan,
    GanParams,
    GenerativeReplay,
    adam,
    descend,
    normal,
    taught,
)
from fcilbench.vectors.gan import Critic, Generator, auxiliary_loss, balanced_rows, divergence, to_vector

_NOISE = 100
"""Length of z beside its C entries for the class."""
_BETAS = (0.5, 0.999)
"""Of Adam, as in the authors' code for CIFAR."""
Labelled = tuple[torch.Tensor, torch.Tensor]
"""Images in [-1, 1], `[b, channels, size, size]`, and their labels int64 `[b]`."""


class FedCIL(GenerativeReplay):
    """FedCIL's generator: a federated AC-GAN, consolidated on the server with what the clients' own generators make.

    From the second task on a client minimises L_CE(x, y) + w CE(u, v), with images u that the last task's generator has
    made for the old classes v; their softmax is over all classes seen.

    After its local training a client trains generator G and critic D for `gan_steps` steps each. D has a sigmoid head
    dis (is it real?) and a softmax head aux (which class?) over the classes seen so far. With a the `importance` (1 in
    the first task), own images x, images u of the last generator G_{t-1} and classes y' drawn alike of those that the
    client has and of the old ones,

        D: a R(x, y) + (1 - a) R(u, v) + BCE(dis(G(y')), 0) + CE(aux(G(y')), y') + consistency E
        G: BCE(dis(G(y')), 1) + CE(aux(G(y')), y'),    R(x, y) = BCE(dis(x), 1) + CE(aux(x), y),

    where E ties the critic to the server's generator S, which the client has received:

        E = KL(aux(S(y)) || aux(x)) + KL(aux(S(y')) || aux(G(y'))) + CE(aux(S(y')), y').

    No gradient reaches the first argument of a KL; E leaves out classes that S has not learned yet. The server averages
    G and D by p_k, and consolidates them by `md_iter` more steps without E, in which x are images of the clients' own
    generators: each draws labels of the classes that it has, of which `balanced_rows` takes each class alike.

    The authors' critic is itself the classifier. Ours is a small network beside the deployed classifier, which is the
    backbone: a run tests FedCIL's generator, not its classifier. `fedcil/hit` logs the share of the images that the
    global model takes for the class they were made for.
    """

    version = "2"  # other betas of Adam
    card: ClassVar = {
        "family": "generators",
        "trained": "the whole model, a generator and a critic",
        "travels": "the model, generator and critic, which classes a client has; generated images once a task",
        "memory": "nothing",
        "source": "Qi et al. 2023, ICLR",
    }
    kit_params: ClassVar[Mapping[str, Any]] = {
        "n_syn": 8,
        "gan_steps": 1,
        "gan_batch": 4,
        "md_iter": 1,
        "gen_image_size": 8,
        "gen_width": 8,
    }

    class Params(GanParams, PresetParams):
        """Hyperparameters of FedCIL."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"gan_steps": 400, "md_iter": 100, "consistency": 0.0}
        }

        w: float = Field(
            1.0,
            ge=0,
            description="weight of the replayed images' cross-entropy; 0 is FedAvg, without a generator",
            space=Space(low=0.1, high=3.0, log=True),
        )
        importance: float = Field(
            0.5, gt=0, le=1, description="share of the new images in the critic's loss", source="code of Qi et al. 2023"
        )
        consistency: float = Field(
            1.0, ge=0, description="weight of E, the agreement with the server's generator", source="Qi et al. 2023"
        )
        md_iter: int = Field(
            50, ge=0, description="server steps on images of the clients' generators; 0: the mean alone"
        )

    params: Params

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy, plus w times that of the replayed images where there are some."""
        own = masked_cross_entropy(net.logits(batch.inputs), batch)
        if batch.extra is None:
            return own
        total: torch.Tensor = own + self.params.w * seen_cross_entropy(net.logits(batch.extra.inputs), batch.extra)
        return total

    def _replays(self) -> bool:
        return super()._replays() and self.params.w > 0

    def _make(self, channels: int, size: int, classes: int) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        width = self.params.gen_width
        generator = lambda: Generator(_NOISE + classes, channels, size, nn.Tanh(), width)  # noqa: E731
        return generator, partial(Critic, channels, size, 1 + classes, width)

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends what training has changed of generator and critic, and which classes the client has."""
        message = super().statistics(client)
        return {**message, "labels": torch.unique(client.own.labels)} if message else {}

    def _learn(
        self, client: Client, gan: Gan, last: nn.Module | None, images: torch.Tensor, labels: torch.Tensor
    ) -> None:
        params, learned, random = self.params, client.received["classes"], client.random("fedcil")
        game = Game(gan, params.lr_gan, client.task.seen, client.net.layout.classes, random)
        old, server = learned[learned < client.task.offset], copy.deepcopy(gan[0]).eval()
        possible = torch.cat([old, torch.unique(labels)])
        for _ in range(params.gan_steps):
            rows = torch.from_numpy(random.integers(0, len(images), params.gan_batch)).to(images.device)
            own = 2 * images[rows] - 1, labels[rows]
            real = self._shares(game, own, last, old)
            wanted = game.labels(possible, params.gan_batch)
            ties = partial(game.consistency, server, learned, own) if params.consistency > 0 else None
            game.step(real, wanted, params.consistency, ties)

    def _shares(
        self, game: Game, own: Labelled, last: nn.Module | None, old: torch.Tensor
    ) -> list[tuple[float, Labelled]]:
        """Returns the images of the critic's real side and their weights: new ones, and those of G_{t-1}."""
        share: float = self.params.importance
        if last is None or not len(old) or share == 1:
            return [(1.0, own)]
        labels = game.labels(old, len(own[1]))
        return [(share, own), (1 - share, (game.made(last, labels), labels))]

    # ---------------------------------------------------------------- server

    def begin(self, server: Server) -> None:
        """Draws the initial generator and critic, which have learned no class."""
        super().begin(server)
        if "critic" in server.state:
            server.state["classes"] = torch.zeros(0, dtype=torch.int64, device=server.vector.device)

    def broadcast(self, server: Server) -> Message:
        """Sends generators and critic, and the classes that the generator has learned."""
        message = super().broadcast(server)
        return {**message, "classes": server.state["classes"]} if message else {}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages model, generator and critic by sample count, and consolidates generator and critic."""
        state = server.state
        before = state.get("generator")
        super().aggregate(updates, server)
        if before is None:
            return
        reported = [message["labels"].to(server.vector.device) for message in updates.statistics]
        state["classes"] = torch.unique(torch.cat([state["classes"], *reported]))
        if self.params.md_iter > 0:
            order = sorted(range(len(updates.clients)), key=lambda row: updates.clients[row])
            vectors = [before + updates.statistics[row]["generator"].to(before) for row in order]
            with torch.enable_grad():
                self._consolidate(server, vectors, [reported[row] for row in order])

    def _consolidate(self, server: Server, vectors: Sequence[torch.Tensor], reported: Sequence[torch.Tensor]) -> None:
        """Trains the averaged generator and critic on images of the clients' generators."""
        params, state, random = self.params, server.state, server.random("fedcil/consolidation")
        gan = self._network(server, "generator"), self._network(server, "critic")
        game = Game(gan, params.lr_gan, server.task.seen, server.layout.classes, random)
        clients = [self._network(server, "generator", vector).eval() for vector in vectors]
        last = self._network(server, "last").eval() if "last" in state else None
        learned = state["classes"]
        old = learned[learned < server.task.offset]
        for _ in range(params.md_iter):
            real = self._shares(game, game.pooled(clients, reported, params.gan_batch), last, old)
            game.step(real, game.labels(learned, params.gan_batch))
        state["generator"], state["critic"] = (to_vector(network) for network in gan)

    def _draw(self, server: Server, generator: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        learned, random = server.state["classes"], server.random("fedcil/images")
        labels = learned[torch.arange(self.params.n_syn, device=learned.device) % len(learned)]
        parts = [made(generator, part, server.layout.classes, random) for part in torch.split(labels, 256)]
        images = (torch.cat(parts) + 1) / 2
        server.log("fedcil/hit", float((taught(server, images).argmax(dim=1) == labels).float().mean()))
        return images, labels


class Game:
    """Generator and critic with their optimisers: the steps that clients and server take alike.

    `seen` is the number of classes so far, over which aux has its softmax, and `classes` the number C of all.
    """

    def __init__(self, gan: Gan, rate: float, seen: int, classes: int, random: np.random.Generator) -> None:
        self._generator, self._critic = gan
        self._generator_step, self._critic_step = adam(gan, rate, _BETAS)
        self._seen, self._classes, self._random = seen, classes, random

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Returns what the critic says of images, `[b, 1 + seen]`: the score of dis, and the logits of aux."""
        scores: torch.Tensor = self._critic(images)[:, : 1 + self._seen]
        return scores

    def labels(self, classes: torch.Tensor, count: int) -> torch.Tensor:
        """Draws labels of some classes, each alike."""
        rows = torch.from_numpy(self._random.integers(0, len(classes), count))
        return classes[rows.to(classes.device)]

    def made(self, generator: nn.Module, labels: torch.Tensor) -> torch.Tensor:
        """Returns images that a generator makes for labels, without gradient."""
        with torch.no_grad():
            return made(generator, labels, self._classes, self._random)

    def pooled(self, clients: Sequence[nn.Module], reported: Sequence[torch.Tensor], count: int) -> Labelled:
        """Returns `count` images of the clients' generators, of each class that any of them has as likely as another.

        Each client draws `count` labels of the classes that it has reported. Of all these a balanced draw is taken, and
        only its images are made.
        """
        drawn = torch.cat([self.labels(classes, count) for classes in reported])
        rows = balanced_rows(drawn.cpu().numpy(), count, self._random)
        owner, images, labels = rows // count, list[torch.Tensor](), list[torch.Tensor]()
        for client, generator in enumerate(clients):
            mine = drawn[torch.from_numpy(rows[owner == client]).to(drawn.device)]
            if len(mine):
                images.append(self.made(generator, mine))
                labels.append(mine)
        return torch.cat(images), torch.cat(labels)

    def step(
        self,
        real: Sequence[tuple[float, Labelled]],
        wanted: torch.Tensor,
        weight: float = 0.0,
        ties: Callable[[Labelled], torch.Tensor] | None = None,
    ) -> None:
        """Takes one step of the critic and one of the generator.

        Args:
            real: Weights and images of the critic's real side.
            wanted: Labels of the images that the generator makes.
            weight: Weight of `ties`, a term of the critic's loss that sees the made images.
            ties: That term.
        """
        fake = self.made(self._generator, wanted), wanted
        loss = auxiliary_loss(self.scores(fake[0]), wanted, real=False)
        for share, (images, labels) in real:
            loss = loss + share * auxiliary_loss(self.scores(images), labels, real=True)
        if ties is not None:
            loss = loss + weight * ties(fake)
        descend(self._critic_step, loss)
        images = made(self._generator, wanted, self._classes, self._random)
        descend(self._generator_step, auxiliary_loss(self.scores(images), wanted, real=True))

    def consistency(self, server: nn.Module, learned: torch.Tensor, own: Labelled, fake: Labelled) -> torch.Tensor:
        """Returns E of own and made images whose labels the server's generator has learned; 0 if there are none."""
        total = own[0].new_zeros(())
        for number, (images, labels) in enumerate((own, fake)):
            known = torch.isin(labels, learned)
            if not bool(known.any()):
                continue
            wanted = self.scores(self.made(server, labels[known]))[:, 1:]
            total = total + divergence(wanted, self.scores(images[known])[:, 1:])
            if number == 1:
                total = total + F.cross_entropy(wanted, labels[known])
        return total


def made(generator: nn.Module, labels: torch.Tensor, classes: int, random: np.random.Generator) -> torch.Tensor:
    """Returns images in [-1, 1] that a generator makes for labels; z is onehot(label) `[C]`, then noise `[100]`."""
    noise = normal(len(labels), _NOISE, random, torch.zeros((), device=labels.device))
    images: torch.Tensor = generator(torch.cat([F.one_hot(labels, classes).to(noise), noise], dim=1))
    return images
