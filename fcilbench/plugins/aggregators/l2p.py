"""L2P: Wang et al. 2022, "Learning to Prompt for Continual Learning" (CVPR), federated by FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import model_validator
from torch import nn

from fcilbench.api import (
    Batch,
    Context,
    FeatureExtractor,
    Field,
    Net,
    PresetParams,
    Request,
    Server,
    Space,
    Updates,
    masked_cross_entropy,
)
from fcilbench.plugins.aggregators.prompts import PromptedViT, PromptMethod


class PromptPool(PromptedViT):
    """A transformer with the prompts that a sample selects in front of its tokens.

    `shape` is the pool size M, the prompt length L and the number N that a sample selects; `prompts` `[M, L, D]` and
    `keys` `[M, D]` are drawn from U(0, init_max).
    """

    def __init__(self, plain: FeatureExtractor, shape: tuple[int, int, int], init_max: float) -> None:
        super().__init__(plain)
        pool, length, self.selected = shape
        self.prompts = nn.Parameter(torch.empty(pool, length, self.transformer.width).uniform_(0.0, init_max))
        self.keys = nn.Parameter(torch.empty(pool, self.transformer.width).uniform_(0.0, init_max))

    def prompted(self, inputs: torch.Tensor, query: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the mean of the prompts' output tokens as `features`, and the selected cosines' sum as `pull`.

        The selected prompts stand in front of [class, patches], the most similar first; they have no position.
        """
        chosen, cosines = select(query, self.keys, self.selected)
        prompts = self.prompts[chosen].flatten(1, 2)  # [B, N L, D]
        tokens = self.body.norm(self.body.blocks(torch.cat([prompts, self.tokens(inputs)], dim=1)))
        features = self.body.fc_norm(tokens[:, : prompts.shape[1]].mean(dim=1))
        return {"features": features, "pull": cosines.sum(dim=1)}


def select(query: torch.Tensor, keys: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns for each query `[B, D]` its `count` nearest of the keys `[M, D]`, and their cosines, both `[B, N]`.

    cos_m = <q / ||q||, K_m / ||K_m||>, norms at least 1e-6. Of equal cosines the key of the smaller index comes first.
    """
    units, own = F.normalize(query, dim=1, eps=1e-6), F.normalize(keys, dim=1, eps=1e-6)
    cosines = (units[:, None] * own).sum(dim=2)  # no matrix product: autocast would round it to bfloat16
    values, indices = cosines.sort(dim=1, descending=True, stable=True)
    return indices[:, :count], values[:, :count]


class L2p(PromptMethod):
    """Learning to Prompt: each sample selects prompts from a shared pool by the cosine of its query and their keys.

    The backbone is frozen. The query q(x) is the feature of the backbone without prompts; the N prompts P_i whose keys
    K_i are closest to it are prepended to the tokens, and the head reads the mean of their output tokens. A client
    minimises L_CE - lambda mean_b sum_{i in I(x_b)} cos(q(x_b), K_i) (Wang et al. 2022, equations 3 and 5): the
    selection has no gradient, so that keys learn from the second term alone. Pool, keys and head are averaged by
    FedAvg. The authors' code takes a majority vote over the batch; here a sample's answer depends on that sample alone.

    `l2p/trained` is the number of prompts that some client trained in a round.
    """

    version = "2"  # selectors read features without prompts
    card: ClassVar = {
        "family": "prompts",
        "trained": "a pool of prompts with keys, and the head",
        "travels": "what is trained",
        "memory": "nothing",
        "source": "Wang et al. 2022, CVPR",
    }
    lr_range = (1e-3, 1.0)

    class Params(PresetParams):
        """Hyperparameters of L2P."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"length": 10, "selected": 4, "lambda_pull": 1.0, "init_max": 0.01}
        }

        pool: int = Field(10, ge=1, description="prompts in the pool, M", source="google-research/l2p, CIFAR-100")
        length: int = Field(5, ge=1, description="tokens of a prompt, L", source="google-research/l2p, first release")
        selected: int = Field(
            5, ge=1, description="prompts that a sample selects, N", source="google-research/l2p, first release"
        )
        lambda_pull: float = Field(
            0.1,
            ge=0,
            description="weight of the term that pulls selected keys towards queries; 0: keys stay as drawn",
            source="google-research/l2p, first release",
            space=Space(low=0.01, high=10.0, log=True),
        )
        init_max: float = Field(
            1.0, gt=0, description="prompts and keys are drawn from U(0, init_max)", source="JH-LEE-KR/l2p-pytorch"
        )

        @model_validator(mode="after")
        def _selects_from_the_pool(self) -> Self:
            if self.selected > self.pool:
                raise ValueError(f"a pool of {self.pool} has no {self.selected} prompts: set selected to {self.pool}")
            return self

    def insert(self, network: Any, plain: FeatureExtractor, request: Request) -> None:
        """Gives the transformer the prompt pool."""
        params = self.params
        network.extractor = PromptPool(plain, (params.pool, params.length, params.selected), params.init_max)

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy minus lambda times the mean over samples of the selected cosines' sum."""
        outputs = self.outputs(net, batch)
        pull = batch.mean(outputs["pull"])
        loss: torch.Tensor = masked_cross_entropy(net.head(outputs["features"]), batch) - self.params.lambda_pull * pull
        return loss

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages as FedAvg, and logs how many prompts were trained."""
        piece = server.layout.piece("extractor.prompts")
        moved = updates.delta[:, piece.span].reshape(len(updates.clients), piece.shape[0], -1)
        server.log("l2p/trained", int((moved != 0).any(dim=2).any(dim=0).sum()))
        super().aggregate(updates, server)
