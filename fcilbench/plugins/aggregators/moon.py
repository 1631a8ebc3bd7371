"""MOON: Li, He, Song 2021, "Model-Contrastive Federated Learning"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    Aggregator,
    Batch,
    Client,
    Context,
    FeatureExtractor,
    Field,
    Message,
    Net,
    PresetParams,
    Request,
    Space,
    masked_cross_entropy,
)

_LEAST = 1e-8
"""Norm of a representation up to which it has no direction."""


class Moon(Aggregator):
    """MOON: local representations are drawn to the received model's and away from the client's previous one's.

    With the features z, z_g, z_p `[F]` of one augmented input under the trained model, the received one and the one
    that the client trained in its last visit, both frozen and in eval mode, a client minimises L_CE + mu l_con (Li et
    al. 2021, equations 3 and 4) with

        l_con = mean_i -log( e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau)) ).

    The server averages as FedAvg does. In a client's first visit there is no previous model: the received one takes its
    place, l_con is log 2 and its gradient exactly 0. The authors contrast the output of a two-layer MLP that they
    insert between backbone and head (`projection: 256`); by default the network is as it is.
    """

    version = "1"
    card: ClassVar = {
        "family": "optimisation",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "the model that it trained last",
        "source": "Li et al. 2021, CVPR",
    }

    class Params(PresetParams):
        """Hyperparameters of MOON."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"projection": 256}}

        mu: float = Field(
            1.0,
            ge=0,
            description="weight of the contrastive term; 0 is FedAvg",
            source="Li et al. 2021: the code's default; they tune it in {0.1, 1, 5, 10}",
            space=Space(low=0.1, high=10.0, log=True),
        )
        tau: float = Field(
            0.5,
            gt=0,
            description="temperature of the contrastive term",
            source="Li et al. 2021",
            space=Space(choices=(0.25, 0.5, 1.0)),
        )
        projection: int | None = Field(
            None, ge=1, description="output size of an MLP between backbone and head, whose output is contrasted"
        )
        previous: Literal["keep", "reset"] = Field(
            "keep", description="whether a client's first visit in a task contrasts with its model of an earlier task"
        )

    def prepare(self, network: nn.Module, request: Request) -> None:
        """Inserts the MLP F -> F -> `projection` between backbone and head, if there is to be one."""
        size, head, extractor = self.params.projection, network.head, network.extractor
        if size is None:
            return
        assert isinstance(head, nn.Linear)
        assert isinstance(extractor, FeatureExtractor)
        features = extractor.feature_dim
        mlp = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, size))
        network.extractor = FeatureExtractor(nn.Sequential(extractor, mlp), size, extractor.channels_last)
        network.head = nn.Linear(size, head.out_features)

    def begin_client_task(self, client: Client) -> None:
        """Sets the previous model to the received one where there is none."""
        if self.params.mu and ("previous" not in client.state or self.params.previous == "reset"):
            client.state["previous"] = client.received_model.clone()

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy plus mu l_con; without mu neither frozen model is run."""
        features = net.features(batch.inputs)
        loss = masked_cross_entropy(net.head(features), batch)
        if not self.params.mu:
            return loss
        with torch.no_grad():
            common, own = (net.under(context[name]).features(batch.inputs) for name in ("received", "state/previous"))
        total: torch.Tensor = loss + self.params.mu * batch.mean(contrast(features, common, own, self.params.tau))
        return total

    def statistics(self, client: Client) -> Message:
        """Sends nothing; keeps the model `[D]` that the client has trained, not the one that it received."""
        if self.params.mu:
            client.state["previous"] = client.net.vector.clone()
        return {}


def contrast(features: torch.Tensor, common: torch.Tensor, own: torch.Tensor, tau: float) -> torch.Tensor:
    """Returns `softplus((cos(z, z_p) - cos(z, z_g)) / tau)` of each row, float32 `[B]`.

    `features` z, `common` z_g and `own` z_p are `[B, F]`. The cosines' difference is one product, so that its gradient
    is exactly 0 where z_p = z_g.
    """
    away = _unit(own) - _unit(common)
    return F.softplus((_unit(features) * away).sum(dim=1) / tau)


def _unit(rows: torch.Tensor) -> torch.Tensor:
    """Returns rows of norm 1, float32; rows without a direction become 0 and get no gradient."""
    rows = rows.float()
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(norms > _LEAST, norms, torch.inf)
