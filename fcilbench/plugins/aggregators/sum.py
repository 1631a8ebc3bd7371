"""SUM (Surgery & Merge): projections on the server, over clients in each round and over tasks at each task's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch

from fcilbench.api.aggregator import Aggregator, Traits
from fcilbench.api.client import Client
from fcilbench.api.message import Message, pack_symmetric, unpack_symmetric
from fcilbench.api.params import Field, Space
from fcilbench.api.params import Params as BaseParams
from fcilbench.api.predict import AllClasses, MostConfident, Predictors, TrueTask
from fcilbench.api.server import Server, Updates
from fcilbench.vectors.basis import project_out, rebuild
from fcilbench.vectors.regmean import regmean
from fcilbench.vectors.sums import weighted_sum
from fcilbench.vectors.surgery import coefficients, gram, mean_pairwise_cosine, surgery_matrix
from fcilbench.vectors.trim import trim
from fcilbench.vectors.unify import elect, mask_and_scale, restore, top_k


class Sum(Aggregator):
    """Spatial surgery on client vectors, temporal surgery on task vectors, and one unified task module.

    Each round: theta_G <- theta_G + lambda_S sum_i tau_hat_i on the backbone, RegMean on the head (specs/sum.md,
    section 1). At the end of a task its vector joins an orthogonal basis (section 2), from which the modules of all
    tasks are rebuilt (section 3). Training goes on from theta_G: the modules are what is deployed.
    """

    version = "1"
    traits = Traits(server_only=True, interaction_modelling=True)
    breaks: ClassVar[Mapping[str, str]] = {
        "one-client": "the round adds lambda_s times the client's vector, also where there is only one",
        "identical-clients": "projections of equal vectors cancel: n of them step by lambda_s n (2 - n) vectors",
    }

    class Params(BaseParams):
        """Hyperparameters of SUM; defaults of the paper, experimental settings."""

        z_thr: float | None = Field(4.5, gt=0, description="z-score beyond which an update's coordinate is zeroed")
        lambda_s: float = Field(
            0.4, gt=0, description="scale of the SUM over refined client vectors", space=Space(low=0.05, high=1.0)
        )
        k_pct: float = Field(
            0.05, gt=0, le=1, description="share of each basis vector that is kept", space=Space(low=0.01, high=0.2)
        )
        head: Literal["regmean", "sum"] = Field("regmean", description="how the classifier head is merged")
        gamma_head: float = Field(0.5, ge=0, le=1, description="off-diagonal factor of RegMean's Gram on the head")

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends the Gram matrix of the head's inputs, upper triangle `[F (F + 1) / 2]`, summed in float64."""
        if self.params.head != "regmean":
            return {}
        features = (client.net.features(batch.inputs).double() for batch in client.batches())
        total = sum((inputs.T @ inputs for inputs in features), torch.zeros((), dtype=torch.float64))
        return {"gram_head": pack_symmetric(total.float())}

    # ---------------------------------------------------------------- server, each round

    def begin(self, server: Server) -> None:
        """Remembers the pretrained backbone and starts an empty basis."""
        server.state.update(pre=server.theta[server.parts.backbone].clone(), basis=[], coefficients=[])

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Merges the backbone by spatial surgery, the head by RegMean, buffers by their mean."""
        server.step(self._spatial(updates, server), server.parts.backbone)
        server.step(self._head(updates), server.parts.head)
        server.step(updates.mean(server.parts.buffers), server.parts.buffers)

    def _spatial(self, updates: Updates, server: Server) -> torch.Tensor:
        vectors = trim(updates.backbone, self.params.z_thr)
        products = gram(vectors)
        surgery = surgery_matrix(products)
        weights = coefficients(surgery)
        server.log("sum/coefficient_min", float(weights.min()))
        server.log("sum/coefficient_mean", float(weights.mean()))
        server.log("sum/coefficient_max", float(weights.max()))
        server.log("sum/cosine_before", mean_pairwise_cosine(products))
        server.log("sum/cosine_after", mean_pairwise_cosine(surgery @ products @ surgery.T))
        if bool((weights < 0).any()):
            server.warn(
                "sum: a client coefficient is negative (clients more alike than cosine 1/(n-1)); "
                "see sum/coefficient_min in the curve"
            )
        return weighted_sum(self.params.lambda_s * weights, vectors)

    def _head(self, updates: Updates) -> torch.Tensor:
        if self.params.head == "sum":
            return weighted_sum(torch.ones(len(updates.clients)), updates.delta[:, updates.parts.head])
        features = updates.parts.features
        grams = [unpack_symmetric(message["gram_head"], features) for message in updates.statistics]
        weight = regmean(updates.head_weight, grams, updates.weights, self.params.gamma_head)
        return torch.cat([weight.flatten(), weighted_sum(updates.weights, updates.head_bias)])

    # ---------------------------------------------------------------- server, end of a task

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:  # noqa: ARG002
        """Adds the task's vector to the basis and elects tau_uni anew; masks and scales follow from both."""
        state = server.state
        task_vector = server.theta[server.parts.backbone] - state["pre"]
        refined, kept = project_out(task_vector, state["basis"])
        state["basis"].append(refined)
        state["coefficients"].append(kept)
        state["unified"] = elect([top_k(vector, self.params.k_pct) for vector in state["basis"]])

    # ---------------------------------------------------------------- inference

    def predictors(self, server: Server) -> Predictors:
        """Deploys theta_G for `none`, and one module a task for `inferred` and `oracle`."""
        modules: dict[str, Callable[[], torch.Tensor]] = {"global": lambda: server.theta}
        for k in range(len(server.state["basis"])):
            modules[f"task-{k}"] = lambda k=k: self._module(server, k)  # type: ignore[misc]
        return Predictors(
            modules=modules,
            answers={"none": AllClasses(), "inferred": MostConfident("task-{}"), "oracle": TrueTask("task-{}")},
        )

    @staticmethod
    def _module(server: Server, task: int) -> torch.Tensor:
        """Returns theta_infer of a task: theta_pre + m_k s_k tau_uni on the backbone, the current head and buffers."""
        state = server.state
        accumulated = rebuild(task, state["basis"], state["coefficients"])
        mask, scale = mask_and_scale(accumulated, state["unified"])
        deployed = server.theta.clone()
        deployed[server.parts.backbone] = state["pre"] + restore(state["unified"], mask, scale)
        return deployed
