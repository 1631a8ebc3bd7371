"""HGP: hierarchical generative prototypes.

Salami et al. 2024, "Federated Class-Incremental Learning with Hierarchical Generative Prototypes" (arXiv 2406.02447).
First the method, then its mixtures and its loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    ONE_SCALE,
    Client,
    FeatureExtractor,
    Field,
    Message,
    Net,
    No,
    Predictors,
    PromptedViT,
    PromptMethod,
    Request,
    Server,
    Space,
    Updates,
    Wire,
)
from fcilbench.plugins.aggregators.ccvr import (
    CcvrParams,
    Gaussians,
    class_statistics,
    covariances,
    merge,
    refit_rows,
    roots,
    unpack,
)
from fcilbench.plugins.aggregators.codap import TaskHead, takes_prefix, with_prefix

_CODE = "fed-mammoth, the authors' code"
BLOCKS = 5
"""Blocks that get a prefix: the first ones, or all if there are fewer."""
_REACH = 0.02
"""Prompts are drawn from U(-0.02, 0.02)."""


class PrefixViT(PromptedViT):
    """A transformer whose first blocks attend to a prefix, the same for every sample.

    Attributes:
        prompts: `[blocks, L, D]`: the first half joins a block's keys, the second its values.
    """

    def __init__(self, plain: FeatureExtractor, length: int) -> None:
        super().__init__(plain)
        shape = min(BLOCKS, self.transformer.depth), length, self.transformer.width
        self.prompts = nn.Parameter(torch.empty(shape).uniform_(-_REACH, _REACH))

    def outputs(self, inputs: torch.Tensor, context: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns `features` `[B, F]`; there is no query."""
        return self.prompted(inputs, inputs)

    def prompted(self, inputs: torch.Tensor, query: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns `features` `[B, F]`, whatever the query."""
        tokens = self.tokens(inputs)
        for number, block in enumerate(self.body.blocks):
            if number < len(self.prompts):
                tokens = with_prefix(block, tokens, self.prompts[number].expand(len(inputs), -1, -1))
            else:
                tokens = block(tokens)
        return {"features": self.body.forward_head(self.body.norm(tokens))}


class HgpParams(CcvrParams):
    """Hyperparameters of HGP; those of CCVR whose refit it takes over, and its own."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    length: int = Field(
        200,
        ge=2,
        multiple_of=2,
        description="rows of a block's prefix: half keys, half values",
        source=_CODE,
        space=Space(choices=(20, 100, 200)),
    )
    scope: Literal["seen", "current"] = Field(
        "seen", description="refit all seen classes, or the task's only", source=_CODE
    )
    samples: int = Field(256, ge=1, description="drawn features a class and epoch", source=_CODE)
    epochs: int = Field(5, ge=0, description="epochs of the refit, each on new features; 0: none", source=_CODE)
    lr_head: float = Field(
        1e-3,
        gt=0,
        description="learning rate of the refit, cosine over its epochs",
        source=_CODE,
        space=Space(low=1e-4, high=0.1, log=True),
    )
    when: Literal["task_end", "round"] = Field(
        "round", description="refit after each round from features of the local models, or at the end of a task"
    )
    mixture: Literal["clients", "merged"] = Field(
        "clients", description="a Gaussian for each class and client, or one for each class", source=_CODE
    )
    inflate: float = Field(
        3.0,
        gt=0,
        description="factor of the covariances that features are drawn from",
        source=_CODE,
        space=Space(choices=(1.0, 3.0)),
    )
    temperature: float = Field(0.1, gt=0, description="temperature of the refit's normalised logits", source=_CODE)


class Hgp(PromptMethod):
    """Hierarchical generative prototypes: prompts trained by FedAvg, and a head refitted on drawn features.

    The backbone is frozen; its first five blocks have one prefix each, for all samples and tasks. Clients train the
    prefixes and the task's head rows by the masked cross-entropy, and FedAvg merges them. Each client sends count, mean
    and variance of each class's features under its own model. The server keeps for each class c the mixture of its
    clients' Gaussians, N(mu_kc, s v_kc) with weight n_kc / sum_k n_kc and inflation s = 3, and after every round refits
    the head on draws from it: classes equally often, then a client by its weight, then its Gaussian. It minimises the
    cross-entropy over all classes seen of (z / ||z||) / temperature by SGD. The mixtures of earlier tasks stay as they
    were sent last.

    A client's Gaussian of a single sample has the covariance of the class's pooled samples (`mixture: merged` has no
    other); in the authors' code such a client is left out. All prompts of that code start at zero, where its rows learn
    the same for ever; here they are drawn.

    `hgp/loss` logs the refit's loss in its last epoch, `hgp/components` the number of Gaussians.
    """

    version = "2"  # selectors read features without prompts
    card: ClassVar = {
        "family": "prompts",
        "trained": "prompts, and the head",
        "travels": "what is trained; mean and variance of each class each round",
        "memory": "nothing",
        "source": "Salami et al. 2024, arXiv",
    }
    lr_range = (1e-4, 1e-2)
    kit_params: ClassVar[Mapping[str, Any]] = {"length": 4, "samples": 16, "epochs": 2}
    breaks: ClassVar = {
        "one-client": "the server refits the head after the round",
        "identical-clients": "the server refits the head after the round",
    }

    class Params(HgpParams):
        """Hyperparameters of HGP."""

    params: HgpParams

    def insert(self, network: Any, plain: FeatureExtractor, request: Request) -> No | None:
        """Gives the transformer the prefixes, and cuts the head by task; declines attention that takes no prefix."""
        blocks: Any = plain.body.blocks
        if not all(map(takes_prefix, blocks[:BLOCKS])):
            return No("Hgp adds prefixes to timm's plain attention, and this transformer has another")
        network.extractor = PrefixViT(plain, self.params.length)
        network.head = TaskHead(network.head, request.tasks)
        return None

    # ---------------------------------------------------------------- clients

    def query(self, net: Net, inputs: torch.Tensor) -> None:  # type: ignore[override]
        """Asks nothing of the backbone without prompts."""

    def statistics(self, client: Client) -> Message:
        """Sends count, mean and M2 of the classes present, of the local model, where each round refits the head."""
        return self._measured(client) if self.params.when == "round" else {}

    def task_statistics(self, client: Client) -> Message:
        """Sends the same of the final global model of a task, where its end does."""
        return self._measured(client)

    def _measured(self, client: Client) -> Message:
        return class_statistics(client, self.params.cov == "full") if self.params.epochs > 0 else {}

    # ---------------------------------------------------------------- server

    def wire(self, server: Server) -> Wire:
        """Trains and sends the prompts, and the current task's rows of the head."""
        pieces = ("extractor.prompts", f"head.*.{server.task.index}")
        return Wire(train=pieces, up=pieces)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages as FedAvg, and refits the head where each round does."""
        super().aggregate(updates, server)
        if self.params.when == "round":
            order = sorted(range(len(updates.clients)), key=lambda row: updates.clients[row])
            self._refit(server, [updates.statistics[row] for row in order])

    def wants_task_statistics(self, server: Server) -> bool:
        """Asks for statistics at the final global model of every task, unless each round has its own."""
        return self.params.when == "task_end" and self.params.epochs > 0

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Refits the head at the end of a task, unless each round does."""
        if self.params.when == "task_end":
            self._refit(server, list(statistics.values()))

    def _refit(self, server: Server, statistics: Sequence[Message]) -> None:
        """Refits the head rows of all classes with statistics, in the scope, on draws from their mixtures."""
        params = self.params
        if not statistics or params.epochs == 0:  # without clients that have data nothing new is known
            return
        kept: dict[int, list[dict[str, torch.Tensor]]] = {}
        if params.scope == "seen":
            kept = server.state.setdefault("statistics", {})
        kept[server.task.offset] = [dict(message) for message in statistics]
        full = params.cov == "full"
        mixtures: list[Mixture] = []
        for offset, sent in sorted(kept.items()):
            parts = [unpack(message, full) for message in sent]
            mixtures += mixtures_of(parts if params.mixture == "clients" else [merge(parts)], offset)
        if not mixtures:
            return
        features = partial(draw, mixtures, params.samples, params.inflate)
        objective = partial(normalised_cross_entropy, temperature=params.temperature)
        labels = torch.tensor([mixture.label for mixture in mixtures], device=server.vector.device)
        random = server.random("hgp")
        server.log("hgp/loss", refit_rows(server, labels, features, params, random, objective=objective))
        server.log("hgp/components", sum(len(mixture.weights) for mixture in mixtures))

    def predictors(self, server: Server) -> Predictors:
        """Deploys the global model; its refitted head ranks the classes of all tasks on one scale."""
        return Predictors({"global": lambda: server.vector}, ONE_SCALE)


# -------------------------------------------------------------------- mixtures and loss


@dataclass(frozen=True)
class Mixture:
    """A class as a mixture of its clients' Gaussians, float64.

    Attributes:
        label: The class.
        weights: n_kc / sum_k n_kc, `[m]`, of the clients that have the class.
        means: `[m, F]`.
        roots: Factors A of the covariances A A^T: standard deviations `[m, F]`, or `[m, F, F]`.
    """

    label: int
    weights: torch.Tensor
    means: torch.Tensor
    roots: torch.Tensor


def mixtures_of(parts: Sequence[Gaussians], offset: int) -> list[Mixture]:
    """Returns the mixture of every class of a task that a client has, from the clients' statistics `[c, ..]`.

    The covariance of a component is that of its own samples, or of one sample that of the class's pooled ones.
    """
    pooled = merge(parts)
    present = pooled.count.nonzero()[:, 0]
    if not len(present):
        return []
    shared = dict(zip(present.tolist(), covariances(pooled[present]), strict=True))
    components: dict[int, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {label: [] for label in shared}
    for part in parts:
        own = part.count.nonzero()[:, 0]
        if not len(own):
            continue
        for label, covariance in zip(own.tolist(), covariances(part[own]), strict=True):
            chosen = covariance if float(part.count[label]) > 1 else shared[label]
            components[label].append((part.count[label], part.mean[label], chosen))
    found = []
    for label, rows in components.items():
        counts, means, spread = (torch.stack(column) for column in zip(*rows, strict=True))
        found.append(Mixture(offset + label, counts / counts.sum(), means, roots(spread)))
    return found


def draw(
    mixtures: Sequence[Mixture], samples: int, inflate: float, random: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws `samples` features of each class: a component by its weight, then its Gaussian of an inflated covariance.

    Returns features float32 `[n, F]`, class by class, and the positions of their mixtures int64 `[n]`. Numbers are
    drawn on the CPU, so that every device sees the same.
    """
    features = []
    for mixture in mixtures:
        means, factors = mixture.means, mixture.roots * inflate**0.5
        share = mixture.weights.cpu().numpy()
        chosen = torch.from_numpy(random.choice(len(share), size=samples, p=share)).to(means.device)
        noise = torch.from_numpy(random.standard_normal((samples, means.shape[1]))).to(means)
        if factors.dim() == 2:
            features.append(means[chosen] + factors[chosen] * noise)
        else:
            moved = torch.empty_like(noise)
            for number, factor in enumerate(factors):
                moved[chosen == number] = noise[chosen == number] @ factor.T
            features.append(means[chosen] + moved)
    rows = torch.arange(len(mixtures), device=features[0].device).repeat_interleave(samples)
    return torch.cat(features).float(), rows


def normalised_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns the mean cross-entropy of (z / ||z||) / temperature of logits z `[n, a]`, which no scale of z changes."""
    return F.cross_entropy(F.normalize(logits, dim=1) / temperature, labels)
