"""STGM: spatio-temporal gradient matching, published as STAMP.

Nguyen, Nguyen and Pham 2025, "Improving Generalization in Heterogeneous Federated Continual Learning via
Spatio-Temporal Gradient Matching with Prototypical Coreset" (arXiv 2506.12031). Its core is CAGrad: Liu et al. 2021,
"Conflict-Averse Gradient Descent for Multi-task Learning" (NeurIPS). First the method, then the matching and the
training of a client's copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from fcilbench.api import (
    Aggregator,
    Client,
    Field,
    Memory,
    PresetParams,
    Protocol,
    Server,
    Space,
    Updates,
    client_weights,
    masked_cross_entropy,
    weighted_sum,
)
from fcilbench.vectors.surgery import Trimmed, gram

Rescale = Literal["unit", "cagrad"]
_CODE = "the authors' code"
_NOTHING = 1e-12
"""Squared length, relative to the mean of the vectors', below which a combination of them has no direction."""


class Stgm(Aggregator):
    """Spatio-temporal gradient matching: steps that no client and, on a client, no earlier task disagrees with.

    Of vectors g_1 .. g_N with mean g0, `match` takes the direction of the ball ||d - g0|| <= c ||g0|| whose smallest
    inner product with the g_i is largest: d = g0 + c ||g0|| g_w / ||g_w||, where g_w = sum_i w_i g_i minimises
    <g_w, g0> + c ||g0|| ||g_w|| over the simplex. Then d is divided by 1 + c, so that equal vectors are left as they
    are; CAGrad divides by 1 + c^2, which lengthens every step by up to (1 + c) / (1 + c^2).

    Spatial, on the server: theta <- theta + eta_s match(theta_1 - theta, .., theta_N - theta), over all parameters.
    Temporal, on a client after its local training (`finish`): for every earlier task of which it keeps samples a copy
    of the received model is trained on them, and theta_k = theta + eta_c match of these displacements and its own. What
    it keeps of a class are the `coreset` samples whose features are nearest to their mean.

    Here the copies start from the received model. In the authors' code they start from the model after the current
    task, so that each displacement contains that of the current task, and either they do not move or they train on all
    data of the earlier tasks. The code has no rule for the coreset; the paper's prototypical loss is left out.

    `stgm/largest_weight` logs the largest w_i: 1 where a single client decides. `stgm/conflicts` is the share of pairs
    of clients with a negative inner product.
    """

    version = "1"
    card: ClassVar = {
        "family": "geometry",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "some samples of each class",
        "source": "Nguyen et al. 2025, arXiv",
    }

    class Params(PresetParams):
        """Hyperparameters of STGM."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"eta_c": 2.0, "rescale": "cagrad", "weighting": "uniform"}
        }

        c: float = Field(
            0.25,
            ge=0,
            lt=1,
            description="radius of the ball around the mean, in units of its length; 0: the mean itself",
            source=_CODE,
            space=Space(low=0.0, high=0.9),
        )
        eta_s: float = Field(
            1.0, gt=0, description="factor of the server's step", source=_CODE, space=Space(low=0.3, high=1.5)
        )
        eta_c: float = Field(
            1.0, gt=0, description="factor of a client's matched step; the authors' code doubles it", source="ours"
        )
        rescale: Rescale = Field(
            "unit", description="what a match is divided by: 1 + c, or 1 + c^2 as in CAGrad", source="ours"
        )
        weighting: Literal["samples", "uniform"] = Field(
            "samples",
            description="weights of the clients' mean, by sample count or equal",
            source="FedAvg's, so that without a ball and a coreset the method is FedAvg",
        )
        coreset: int = Field(
            10, ge=0, description="samples of each class that a client keeps; 0: no temporal matching", source="ours"
        )

    params: Params

    # ---------------------------------------------------------------- clients

    def begin_client_task(self, client: Client) -> None:
        """Keeps the core of each class of the tasks that have ended, by the features of the received model."""
        if self.params.coreset == 0 or not len(client.past):
            return
        features = torch.cat([client.net.features(batch.inputs) for batch in client.batches(client.past)])
        client.memory = client.memory.join(client.past.take(core(features, client.past.labels, self.params.coreset)))

    def client_replay(self, client: Client) -> None:
        """Draws nothing: what a client keeps trains the copies, not the steps of the current task."""

    def finish(self, client: Client) -> torch.Tensor | None:
        """Returns the received model plus eta_c times the match of the current task with each earlier one."""
        params, trained = self.params, client.net.layout.trainable
        if params.coreset == 0:
            return None
        received = client.received_model[trained]
        rows = [client.net.vector[trained] - received]
        rows += [copy - received for copy in map(partial(train_copy, client), kept_tasks(client))]
        stacked = torch.stack(rows)
        shares = torch.full((len(rows),), 1.0 / len(rows), dtype=torch.float64)
        factors, _ = match(gram(Trimmed(stacked, None)), shares, params.c, params.rescale)
        factors = params.eta_c * factors
        if factors.tolist() == [1.0]:  # an only vector, which would be rounded
            return None
        result = client.net.vector.clone()
        result[trained] = received + weighted_sum(factors, stacked)
        return result

    # ---------------------------------------------------------------- server

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Steps by the match of the clients' updates; buffers take their sample-weighted mean."""
        params, parts = self.params, updates.layout
        rows = updates.delta[:, parts.trainable]
        products = gram(Trimmed(rows, None))
        shares = client_weights(updates.weights, params.weighting)
        factors, weights = match(products, shares, params.c, params.rescale)
        server.step(weighted_sum(params.eta_s * factors, rows), parts.trainable)
        server.step(updates.mean(parts.buffers), parts.buffers)
        server.log("stgm/largest_weight", float(weights.max()))
        pairs = len(rows) * (len(rows) - 1)
        server.log("stgm/conflicts", int((products < 0).sum()) / pairs if pairs else 0.0)


# -------------------------------------------------------------------- matching


def match(
    products: torch.Tensor, shares: torch.Tensor, radius: float, rescale: Rescale
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the factors a `[N]` of the matched vector sum_i a_i g_i, and the weights w `[N]`, float64 on the CPU.

    a_i = (p_i + c ||g0|| w_i / ||g_w||) / (1 + c), with g0 = sum_i p_i g_i; see `Stgm`. If the mean is 0, so is the
    match. Where w can make g_w zero, no direction is better than another, and the mean alone is left.

    Args:
        products: Gram matrix K of the vectors, `[N, N]`: lengths and inner products are all that counts.
        shares: p `[N]`, of sum 1.
        radius: c.
        rescale: Divides by 1 + c (`unit`) or by 1 + c^2 (`cagrad`).
    """
    products, shares = products.double().cpu(), shares.double().cpu()
    unit = float(products.diagonal().mean())
    mean = float(shares @ products @ shares)
    weights = torch.full_like(shares, 1.0 / len(shares))
    if mean <= _NOTHING * unit:
        return torch.zeros_like(shares), weights
    ratio = 0.0
    if radius > 0:
        weights = hardest(products / unit, shares, radius)
        length = float(weights @ products @ weights)
        ratio = (mean / length) ** 0.5 if length > _NOTHING * unit else 0.0
    divisor = 1 + radius if rescale == "unit" else 1 + radius**2
    return (shares + radius * ratio * weights) / divisor, weights


def hardest(products: torch.Tensor, shares: torch.Tensor, radius: float) -> torch.Tensor:
    """Returns the w `[N]` of the simplex that minimises <g_w, g0> + c ||g0|| ||g_w||, by Newton steps in float64.

    The function is convex. A barrier -mu sum_i log w_i keeps w inside, and ||g_w|| is rounded off where it is 0, as
    sqrt(||g_w||^2 + mu^2); mu falls to 1e-12. The objective is then within (N + 1) mu of its least value. Products are
    in units of the vectors' mean squared length.
    """
    towards = products @ shares
    reach = radius * float(shares @ towards) ** 0.5

    def value(w: torch.Tensor, mu: float) -> float:
        return float(towards @ w + reach * (w @ products @ w + mu**2).clamp(min=0).sqrt() - mu * w.log().sum())

    w = torch.full_like(shares, 1.0 / len(shares))
    for mu in (10.0**-power for power in range(13)):
        for _ in range(50):
            move, decrease = _newton(products, towards, reach, w, mu)
            if decrease <= 1e-3 * mu:
                break
            size = min(1.0, 0.99 / max(float((-move / w).max()), 1e-300))
            before = value(w, mu)
            while size > 1e-9 and value(w + size * move, mu) > before - 0.1 * size * decrease:
                size *= 0.5
            w = w + size * move
            w = w / w.sum()
    return w


def _newton(
    products: torch.Tensor, towards: torch.Tensor, reach: float, w: torch.Tensor, mu: float
) -> tuple[torch.Tensor, float]:
    """Returns the Newton step of the barrier function that leaves sum w as it is, and its rate of decrease.

    It is solved for step / w, whose matrix has no eigenvalue below mu.
    """
    pull = products @ w
    length = (w @ pull + mu**2).clamp(min=1e-30).sqrt()
    slope = w * (towards + reach * pull / length) - mu
    scaled = w * pull / length
    bend = reach / length * (w[:, None] * products * w - scaled[:, None] * scaled)
    system = torch.zeros(len(w) + 1, len(w) + 1, dtype=w.dtype)
    system[:-1, :-1] = bend + mu * torch.eye(len(w), dtype=w.dtype)
    system[-1, :-1] = system[:-1, -1] = w
    step = torch.linalg.solve(system, torch.cat([-slope, slope.new_zeros(1)]))[:-1]
    return w * step, -float(slope @ step)


# -------------------------------------------------------------------- coreset and copies


def core(features: torch.Tensor, labels: torch.Tensor, count: int) -> list[int]:
    """Returns of each class the `count` rows of features `[n, F]` nearest to their mean, nearest first.

    Classes are in ascending order; of equal distances the lower row comes first.
    """
    chosen: list[int] = []
    for label in sorted(set(labels.tolist())):
        rows = (labels == label).nonzero()[:, 0]
        own = features[rows].double()
        order = (own - own.mean(dim=0)).norm(dim=1).sort(stable=True)[1]
        chosen += rows[order[:count]].tolist()
    return chosen


def kept_tasks(client: Client) -> list[Memory]:
    """Returns the samples that a client keeps, cut into their tasks, the earliest first."""
    if not len(client.memory):
        return []
    first = torch.cat([batch.slices[:, 0] for batch in client.batches(client.memory) if batch.slices is not None])
    return [client.memory.take((first == own).nonzero()[:, 0].cpu().numpy()) for own in sorted(set(first.tolist()))]


def train_copy(client: Client, samples: Memory) -> torch.Tensor:
    """Trains the received model on kept samples of one task; returns its parameters `[P]`.

    As many passes as local training, with its batch size, optimiser, decay and clipping; of a slow client the share of
    its steps that its own training had. A step has the learning rate that the client's own training had at the same
    share of its way. Samples are not augmented, layers are in eval mode.
    """
    protocol, layout, rates = client.protocol, client.net.layout, client.learning_rates
    trained, random = layout.trainable, client.random(f"copy-{int(samples.labels.min())}")
    (batch,) = client.batches(samples.take([0]))
    assert batch.slices is not None
    first, end = batch.slices[0].tolist()
    leaf = torch.nn.Parameter(client.received_model[trained].clone())
    optimiser, decay = _optimiser(leaf, protocol), protocol.weight_decay * layout.live(slice(first, end)).to(leaf)
    orders = [random.permutation(len(samples)) for _ in range(protocol.local_epochs)]
    size = protocol.batch_size
    steps = [order[left : left + size] for order in orders for left in range(0, len(order), size)]
    steps = steps[: max(1, math.floor(client.share * len(steps)))]
    for number, rows in enumerate(steps):
        vector = torch.cat([leaf, client.received_model[trained.stop :]])
        loss = torch.zeros((), device=leaf.device)
        for batch in client.batches(samples.take(rows)):
            with client.low_precision():
                mean = masked_cross_entropy(client.net.under(vector).logits(batch.inputs), batch)
            loss = loss + mean * (len(batch.labels) / len(rows))
        (leaf.grad,) = torch.autograd.grad(loss, leaf)
        optimiser.param_groups[0]["lr"] = rates[number * len(rates) // len(steps)]
        _step(optimiser, protocol, decay)
    return leaf.detach()


def _optimiser(leaf: torch.nn.Parameter, protocol: Protocol) -> torch.optim.Optimizer:
    """Returns the protocol's optimiser of one tensor, without the weight decay, which `_step` applies."""
    if protocol.optimizer == "sgd":
        return torch.optim.SGD([leaf], lr=protocol.lr, momentum=protocol.momentum)
    return torch.optim.Adam([leaf], lr=protocol.lr)  # AdamW differs in its decay alone


@torch.no_grad()
def _step(optimiser: torch.optim.Optimizer, protocol: Protocol, decay: torch.Tensor) -> None:
    """Clips the gradient, applies the weight decay `[P]` (0 in head rows of other tasks) and moves the leaf."""
    (group,) = optimiser.param_groups
    (leaf,) = group["params"]
    if protocol.clip_norm is not None:
        leaf.grad.mul_((protocol.clip_norm / (leaf.grad.norm() + 1e-6)).clamp(max=1.0))
    if protocol.optimizer == "adamw":
        leaf.mul_(1.0 - group["lr"] * decay)
    else:
        leaf.grad.addcmul_(decay, leaf)
    optimiser.step()
