"""AF-FCL: Wuerkaixi et al. 2024, "Accurate Forgetting for Heterogeneous Federated Continual Learning" (ICLR)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    Aggregator,
    Batch,
    Context,
    FeatureExtractor,
    Field,
    Message,
    Net,
    No,
    PresetParams,
    Request,
    Server,
    Space,
    distillation,
    masked_cross_entropy,
)
from fcilbench.vectors.flow import ConditionalFlow

_CODE = "code of Wuerkaixi et al. 2024, CIFAR-100"
_FLOW = "extractor.flow.*"
_TAU = 2.0
"""Temperature of the distillation of outputs: probabilities to the power 1/2."""
_LEAST_VARIANCE = 1e-2
"""Of a class in a batch: one row alone has none."""


class FlowExtractor(FeatureExtractor):
    """An extractor with a flow on its features, which no gradient of the flow reaches.

    Its `outputs` are `features`, and what the context asks for:

    - `flow/labels` `[B]` of the inputs: `latents` `[B, F]` and `log_p` `[B]` of their features;
    - `flow/noise` `[J, F]` and `flow/asked` `[J]`: `samples` `[J, F]`, the features that the flow makes of the noise
      for the classes that are asked for;
    - `flow/replayed` `[J, F]` and `flow/replayed_labels` `[J]` beside `flow/labels`: `replayed_log_p` `[J]` of these
      features, which is empty without them.
    """

    def __init__(self, plain: FeatureExtractor, flow: ConditionalFlow) -> None:
        super().__init__(plain, plain.feature_dim, plain.channels_last)  # it may have a forward pass of its own
        self.transformer, self.flow = plain.transformer, flow

    def outputs(self, inputs: torch.Tensor, context: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the features and what the context asks for."""
        found = {"features": self(inputs)}
        if "flow/asked" in context:
            with torch.no_grad():
                found["samples"] = self.flow.inverse(context["flow/noise"], context["flow/asked"])
        if "flow/labels" in context:
            rows, labels = found["features"].detach(), context["flow/labels"]
            if "flow/replayed" in context:
                rows = torch.cat([rows.to(context["flow/replayed"]), context["flow/replayed"]])
                labels = torch.cat([labels, context["flow/replayed_labels"]])
            latents, log_p = self.flow(rows, labels)
            own = len(found["features"])
            found |= {"latents": latents[:own].detach(), "log_p": log_p[:own], "replayed_log_p": log_p[own:]}
        return found


class AFFCL(Aggregator):
    """Accurate forgetting: replays features that a normalising flow makes, as far as the client's data agree with them.

    The flow models p(f(x) | y) of features f(x) `[F]`. It trains in the same steps as the model, by
    -(mean_i log p(f_i | y_i) + k_ff mean_j log p(x_j | v_j)) / F with features x_j that the flow of the task before has
    made for old classes v_j; no gradient of it reaches the features. The classifier's loss is

        L_CE + k_last (k_feat mean (f_T - f)^2 + k_out KDo(z_T, z))
             + k_loss_flow (rho_bar mean_j rho_j CE(h(s_j), y_j) + k_last k_out mean_j KDo(h_T(s_j), h(s_j))),

    with features s_j that the present flow makes for classes y_j drawn of all seen, head h, and the teacher T, the
    global model with which the task began; both distillations are there from the second task on. KDo is the
    cross-entropy of softmaxes at temperature 2 over the old classes, CE that over all classes seen. s_j are constants:
    replay trains the head alone.

    A made feature counts as far as it is probable under what the client has (`density`). If its batch has rows of class
    y_j, with mean mu and variance var of each of their latents' F entries, rho_j = mean_d N(latent of s_j; mu, var)_d;
    else rho_j = rho_m = mean_i exp(log p(f_i | y_i) / F). rho_bar = (1 - theta) rho_m + theta. All rho are constants.

    The authors' code takes mu and var of latents, and puts the feature s_j itself into that density (`space: mixed`).
    The server averages everything, the flow included.
    """

    version = "1"
    card: ClassVar = {
        "family": "generators",
        "trained": "the whole model, a flow on its features",
        "travels": "the model, the flow",
        "memory": "nothing",
        "source": "Wuerkaixi et al. 2024, ICLR",
    }
    kit_params: ClassVar[Mapping[str, Any]] = {"flow_hidden": 8}

    class Params(PresetParams):
        """Hyperparameters of AF-FCL."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"space": "mixed"}}

        k_loss_flow: float = Field(
            0.5,
            ge=0,
            description="weight of the replay of features; 0 leaves the flow out",
            source=_CODE,
            space=Space(low=0.01, high=5.0, log=True),
        )
        k_last: float = Field(0.2, ge=0, description="weight of the distillations of the teacher", source=_CODE)
        k_feat: float = Field(0.5, ge=0, description="weight of the features in them", source=_CODE)
        k_out: float = Field(0.1, ge=0, description="weight of the outputs in them", source=_CODE)
        k_ff: float = Field(
            0.1,
            ge=0,
            description="weight of the last task's features in the flow's loss",
            source=_CODE,
            space=Space(low=0.01, high=1.0, log=True),
        )
        theta: float = Field(
            0.1,
            ge=0,
            le=1,
            description="least factor of the replay",
            source=_CODE,
            space=Space(low=0.0, high=1.0),
        )
        forgetting: Literal["density", "none"] = Field(
            "density", description="weights of made features; none: rho = 1, every one counts in full"
        )
        space: Literal["latent", "mixed"] = Field(
            "latent", description="where a made feature is compared: by its latent, or itself with the latents' moments"
        )
        flow_rate: float = Field(
            5.0,
            gt=0,
            description="learning rate of the flow as a multiple of the protocol's",
            source=_CODE,
            space=Space(low=0.5, high=100.0, log=True),
        )
        flow_hidden: int = Field(512, ge=1, description="hidden units of the flow's networks", source=_CODE)

    params: Params

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Puts the flow behind the extractor; declines a single feature, which has no halves."""
        plain = network.extractor
        assert isinstance(plain, FeatureExtractor)
        if plain.feature_dim < 2:
            return No(
                "AF-FCL's flow couples one half of the features with the other, and this backbone has one feature"
            )
        if self.params.k_loss_flow > 0:
            flow = ConditionalFlow(plain.feature_dim, request.classes, self.params.flow_hidden)
            network.extractor = FlowExtractor(plain, flow)
        return None

    def rates(self) -> Mapping[str, float]:
        """Returns the learning-rate factor of the flow."""
        return {_FLOW: self.params.flow_rate} if self.params.k_loss_flow > 0 else {}

    # ---------------------------------------------------------------- server

    def random_numbers(self, server: Server) -> int:
        """Asks for the noise of a made feature and its class, twice where the last task's flow makes features, too."""
        if self.params.k_loss_flow == 0:
            return 0
        return (1 + self._refreshes("teacher" in server.state)) * (server.layout.features + 1)

    def broadcast(self, server: Server) -> Message:
        """Sends the teacher (to whom it is new), whose flow is the last task's; nothing in the first task."""
        return {"teacher": server.state["teacher"]} if "teacher" in server.state else {}

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Makes the final global model the next teacher."""
        if not server.last_task and (self.params.k_last > 0 or self._refreshes(True)):
            server.state["teacher"] = server.vector.clone()

    def _refreshes(self, taught: bool) -> bool:
        """Returns whether the flow learns features that the last task's flow has made."""
        return taught and self.params.k_ff > 0 and self.params.k_loss_flow > 0

    # ---------------------------------------------------------------- clients

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the losses of the classifier and of the flow."""
        params, teacher = self.params, net.under(context["teacher"]) if "teacher" in context else None
        asks, taught = self._asked(batch, teacher), dict[str, torch.Tensor]()
        if teacher is not None:
            with torch.no_grad():
                taught = dict(teacher.outputs(batch.inputs, asks.pop("teacher", {})))
                taught["logits"] = teacher.head(taught["features"])
        if "samples" in taught:
            asks["own"] |= {"flow/replayed": taught["samples"]}
        found = net.outputs(batch.inputs, asks.get("own"))
        logits = net.head(found["features"])
        total = masked_cross_entropy(logits, batch)
        if teacher is not None and params.k_last > 0:
            moved = (taught["features"] - found["features"]).square().mean(dim=1)
            old = self._kept(logits, taught["logits"], batch)
            total = total + params.k_last * batch.mean(params.k_feat * moved + params.k_out * old)
        if params.k_loss_flow > 0:
            total = total + flow_loss(found, batch, params.k_ff)
            total = total + params.k_loss_flow * self._replayed(net, teacher, batch, found, asks["own"])
        return total

    def _asked(self, batch: Batch, teacher: Net | None) -> dict[str, dict[str, torch.Tensor]]:
        """Returns what a step asks of its own flow and of the teacher's, with numbers of `batch.random`."""
        if self.params.k_loss_flow == 0:
            return {}
        assert batch.random is not None
        refreshes = self._refreshes(teacher is not None)
        draws = batch.random.chunk(1 + refreshes, dim=1)
        own = {"flow/labels": batch.labels, **drawn(draws[0], batch.task.seen)}
        if not refreshes:
            return {"own": own}
        last = drawn(draws[1], batch.task.offset)
        own["flow/replayed_labels"] = last["flow/asked"]
        return {"own": own, "teacher": last}

    def _replayed(
        self,
        net: Net,
        teacher: Net | None,
        batch: Batch,
        found: Mapping[str, torch.Tensor],
        asks: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        """Returns the loss of the features that the flow makes, one for each row of the batch."""
        params, asked, samples = self.params, asks["flow/asked"], found["samples"]
        logits = net.head(samples)
        rows = F.cross_entropy(logits[:, : batch.task.seen].float(), asked, reduction="none")
        if params.forgetting == "density":
            points = asks["flow/noise"] if params.space == "latent" else samples
            likely = batch.mean((found["log_p"].detach() / samples.shape[1]).exp())
            weights = agreement(points, asked, found["latents"], batch, likely)
            rows = ((1 - params.theta) * likely + params.theta) * weights * rows
        if teacher is not None and params.k_last > 0:
            with torch.no_grad():
                wanted = teacher.head(samples)
            rows = rows + params.k_last * params.k_out * self._kept(logits, wanted, batch)
        return batch.mean(rows)

    @staticmethod
    def _kept(logits: torch.Tensor, taught: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Returns KDo `[B]`: the cross-entropy of the teacher's and the own softmax over the old classes."""
        old = batch.task.offset
        return distillation(logits[:, :old], taught[:, :old], _TAU)


def drawn(uniform: torch.Tensor, classes: int) -> dict[str, torch.Tensor]:
    """Returns normal noise `[B, F]` and labels below `classes`, of uniform numbers `[B, F + 1]`."""
    labels = (uniform[:, -1] * classes).long()
    return {"flow/noise": torch.special.ndtri(uniform[:, :-1]), "flow/asked": labels}


def flow_loss(found: Mapping[str, torch.Tensor], batch: Batch, k_ff: float) -> torch.Tensor:
    """Returns the flow's loss, divided by F: its size then is that of other losses, whatever the number of features."""
    loss = -batch.mean(found["log_p"])
    if len(found["replayed_log_p"]):
        loss = loss - k_ff * batch.mean(found["replayed_log_p"])
    return loss / found["latents"].shape[1]


def agreement(
    points: torch.Tensor, asked: torch.Tensor, latents: torch.Tensor, batch: Batch, otherwise: torch.Tensor
) -> torch.Tensor:
    """Returns rho_j `[J]` of points `[J, F]` made for classes `asked`, under the latents `[B, F]` of a batch's rows.

    The mean over dimensions of N(point; mean, variance of the rows of that class), variances at least 0.01; `otherwise`
    where the batch has no row of the class. Rows of padding do not count.
    """
    alike = (batch.labels[:, None] == batch.labels) * batch.mask
    means = alike @ latents / alike.sum(dim=1, keepdim=True).clamp(min=1.0)
    members = (asked[:, None] == batch.labels) * batch.mask
    count = members.sum(dim=1, keepdim=True)
    mean = members @ latents / count.clamp(min=1.0)
    variance = (members @ (latents - means).square() / count.clamp(min=1.0)).clamp(min=_LEAST_VARIANCE)
    density = (-0.5 * (points - mean).square() / variance).exp() / (2 * math.pi * variance).sqrt()
    return torch.where(count[:, 0] > 0, density.mean(dim=1), otherwise)
