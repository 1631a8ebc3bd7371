"""SUM (Surgery & Merge): projections on the server, over clients in each round and over tasks at each task's end.

Kim and Do 2026, "SUM: Unified Geometric Surgery on Spatio-Temporal Adaptation Vectors for Federated Class Incremental
Learning".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch

from fcilbench.api.aggregator import Aggregator, Traits
from fcilbench.api.client import Client
from fcilbench.api.message import Message, pack_symmetric, unpack_symmetric
from fcilbench.api.predict import AllClasses, Predictors, TrueTask
from fcilbench.api.server import Server, Updates
from fcilbench.plugins.aggregators import sum_prototypes as prototypes
from fcilbench.plugins.aggregators.sum_params import SumParams
from fcilbench.plugins.aggregators.sum_selectors import PROTOTYPES, selector
from fcilbench.vectors.basis import project_out
from fcilbench.vectors.pack import Packed
from fcilbench.vectors.regmean import regmean
from fcilbench.vectors.storage import dense, store
from fcilbench.vectors.sums import weighted_sum
from fcilbench.vectors.surgery import coefficients, gram, mean_pairwise_cosine, merge, surgery_matrix
from fcilbench.vectors.topk import Cut, cut
from fcilbench.vectors.trim import Trimmed
from fcilbench.vectors.unify import Modulators, unify


class Sum(Aggregator):
    """Spatial surgery on client vectors, temporal surgery on task vectors, and one unified task module.

    Each round: theta_G <- theta_G + lambda_S sum_i tau_hat_i on the backbone, RegMean on the head (section 4.2,
    equation 7), with tau_hat_i = tau_i - sum_{j != i} (<tau_i, tau_j> / ||tau_j||^2) tau_j of the client vectors tau_i
    `[D]`, trimmed by z-score (equation 5). At the end of a task its vector joins an orthogonal basis (section 4.3,
    equation 9), from which the modules of all tasks are rebuilt (section 4.4). Training goes on from theta_G: the
    modules are what is deployed. Where the election's two readings part, ours is the majority (`elect`).
    """

    version = "2"
    traits = Traits(server_only=True, interaction_modelling=True)
    breaks: ClassVar[Mapping[str, str]] = {
        "one-client": "the round adds lambda_s times the client's vector, also where there is only one",
        "identical-clients": "projections of equal vectors cancel: n of them step by lambda_s n (2 - n) vectors",
    }

    class Params(SumParams):
        """Hyperparameters of SUM."""

    params: SumParams

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends the Gram matrix of the head's inputs (upper triangle, summed in float64), and the selector's needs."""
        message: dict[str, torch.Tensor] = {}
        if self.params.head == "regmean":
            features = (client.net.features(batch.inputs).double() for batch in client.batches())
            total = sum((inputs.T @ inputs for inputs in features), torch.zeros((), dtype=torch.float64))
            message["gram_head"] = pack_symmetric(total.float())
        if self.params.selector == "prototype":
            message |= prototypes.upload(client)
        return message

    # ---------------------------------------------------------------- server, each round

    def begin(self, server: Server) -> None:
        """Remembers the pretrained model and starts an empty basis."""
        server.state.update(pre=server.vector.clone(), basis=[], coefficients=[], cuts=[])
        if self.params.selector == "prototype":
            prototypes.begin(server)

    def task_broadcast(self, server: Server) -> Message:
        """Sends theta_pre to clients if the selector needs features under it."""
        return {"pre": server.state["pre"]} if self.params.selector == "prototype" else {}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Merges the backbone by spatial surgery, the head by RegMean, buffers by their mean."""
        server.step(self._spatial(updates, server), server.layout.backbone)
        server.step(self._head(updates), server.layout.head)
        server.step(updates.mean(server.layout.buffers), server.layout.buffers)
        if self.params.selector == "prototype":
            prototypes.collect(updates, server)

    def _spatial(self, updates: Updates, server: Server) -> torch.Tensor:
        """Three passes over N x D: statistics, Gram matrix, weighted sum of the trimmed vectors."""
        options = self.params
        segments = _tensors(server) if options.trim == "tensor" else None
        vectors = Trimmed(updates.backbone, options.threshold, segments)
        products = gram(vectors)
        surgery = surgery_matrix(products, options.pairs, options.max_clients)
        weights = coefficients(surgery)
        direction, flips = merge(options.lambda_s * weights, vectors)
        for name, value in (
            ("coefficient_min", weights.min()),
            ("coefficient_mean", weights.mean()),
            ("coefficient_max", weights.max()),
            ("cosine_before", mean_pairwise_cosine(products)),
            ("cosine_after", mean_pairwise_cosine(surgery @ products @ surgery.T)),
            ("sign_flips", flips),
            ("trimmed_share", int(vectors.zeroed) / max(1, updates.backbone.numel())),
        ):
            server.log(f"sum/{name}", float(value))
        if bool((weights < 0).any()):
            server.warn(
                "sum: a client coefficient is negative (clients more alike than cosine 1/(n-1)); "
                "see sum/coefficient_min in the curve"
            )
        if bool((weights < 0).all()):
            server.warn(
                "sum: all client coefficients of a round are negative: it stepped against every client, "
                "away from what they learned; see sum/coefficient_max in the curve"
            )
        return direction

    def _head(self, updates: Updates) -> torch.Tensor:
        if self.params.head == "sum":
            return weighted_sum(torch.ones(len(updates.clients)), updates.delta[:, updates.layout.head])
        features = updates.layout.features
        grams = [unpack_symmetric(message["gram_head"], features) for message in updates.statistics]
        weight = regmean(updates.head_weight, grams, updates.weights, self.params.gamma_head)
        return torch.cat([weight.flatten(), weighted_sum(updates.weights, updates.head_bias)])

    # ---------------------------------------------------------------- server, end of a task

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Adds the task's vector to the basis; elects tau_uni and scales all tasks anew."""
        options, state, backbone = self.params, server.state, server.layout.backbone
        task_vector = server.vector[backbone] - state["pre"][backbone]
        limit = options.max_basis if options.temporal_surgery == "on" else 0
        refined, kept = project_out(task_vector, state["basis"], limit)
        stored = store(refined, options.storage, options.storage_keep)
        state["basis"].append(stored)
        state["coefficients"].append(kept)
        if options.sparsify == "on":
            chosen = cut(dense(stored), options.k_pct)
            state["cuts"].append([chosen.magnitude, chosen.last])
        cuts = [Cut(*numbers) for numbers in state["cuts"]] if options.sparsify == "on" else None
        state["unified"] = unify(state["basis"], cuts, options.elect, server.vector.device)
        modulators = self._modulators(server)
        state["scales"] = modulators.scales()

    def _modulators(self, server: Server) -> Modulators:
        state = server.state
        return Modulators(state["basis"], state["coefficients"], state["unified"], self.params.source)

    # ---------------------------------------------------------------- inference

    def predictors(self, server: Server) -> Predictors:
        """Deploys theta_G for `none`, and one module a task for `inferred` and `oracle`."""
        modules: dict[str, Callable[[], torch.Tensor]] = {"global": lambda: server.vector}
        for k in range(len(server.state["basis"])):
            modules[f"task-{k}"] = lambda k=k: self._deployed(server, k)  # type: ignore[misc]
        if self.params.selector == "prototype":
            modules[PROTOTYPES] = lambda: prototypes.model(server)
        return Predictors(
            modules=modules,
            rules={"none": AllClasses(), "inferred": selector(self.params.selector), "oracle": TrueTask("task-{}")},
        )

    def _deployed(self, server: Server, task: int) -> torch.Tensor:
        """Returns theta_infer of a task: theta_pre + m_k s_k tau_uni on the backbone, the current head and buffers."""
        backbone, scale = server.layout.backbone, float(server.state["scales"][task])
        theta = server.vector.clone()
        theta[backbone] = server.state["pre"][backbone] + self._modulators(server).deployed(task, scale)
        return theta

    def export(self, server: Server) -> Message:
        """Returns tau_uni, masks and scales packed, and the head and buffers; theta_pre stays with the backbone.

        `fcilbench.vectors.pack.Packed.task_vector(k)` added to theta_pre gives theta_infer^(k): masks and scales are
        the evaluated ones to the last bit, tau_uni is rounded to fp16 under one power-of-two scale (2^-11 relative for
        entries down to 2^-29 of the largest), and where tau_uni fits fp16 so the whole vector is equal bit for bit.
        """
        parts, theta = server.layout, server.vector
        packed = Packed.of(self._modulators(server), server.state["scales"])
        return {**packed.tensors(), "head": theta[parts.head], "buffers": theta[parts.buffers]}


def _tensors(server: Server) -> list[int]:
    """Returns the sizes of the backbone's tensors, in the order of the flat vector."""
    stop = server.layout.backbone.stop
    return [piece.span.stop - piece.span.start for piece in server.layout.pieces if piece.span.stop <= stop]
