"""GLFC: Dong et al. 2022, "Federated Class-Incremental Learning" (CVPR), as far as one global model goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F

from fcilbench.api import Aggregator, Batch, Client, Context, Field, Message, Net, PresetParams, Server, Space
from fcilbench.plugins.aggregators.er import herd, joint_logits


class Glfc(Aggregator):
    """GLFC: balances the gradients of old and new classes, and distils the class relations of the last task's model.

    A client's batch has own samples of the task and samples of its memory, with logits z over the K classes seen so
    far, of which the first o are old. With L_i the binary cross-entropy of sample i against its one-hot label, the mean
    over the K classes, it minimises

        (1 - lambda) mean_i w_i L_i + lambda mean_i L_i(q),   w_i = g_i / mean of g over the samples of i's kind,

    where mean_i is half the mean over the own samples and half that over the kept ones, however many of each a batch
    has, g_i = |sigmoid(z_i)[y_i] - 1| is how far the own class's logit still has to go, the kinds are old and new
    classes, and no gradient flows through w. The target q is the one-hot label with its first o entries replaced by the
    teacher's sigmoids; the teacher is the model with which the task began. In the first task w = 1 and lambda = 0.
    Models are averaged. The memory is herded (Rebuffi et al. 2017) at a client's first visit of a task.

    `loss: softmax` is the paper's text in place of its code: softmaxes over the K classes, g_i = 1 - p_i[y_i],
    cross-entropies, and KL(q || p) with q scaled to sum to 1.
    """

    version = "2"  # own and kept samples have half of the loss each
    card: ClassVar = {
        "family": "memory",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "samples of earlier tasks with their labels",
        "source": "Dong et al. 2022, CVPR",
    }

    class Params(PresetParams):
        """Hyperparameters of GLFC."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"memory": 2000}}

        # No search space: a larger memory is another budget, not a better setting.
        memory: int = Field(
            200, ge=1, description="samples that each client keeps", source="as for ER; code of Dong et al. 2022: 2,000"
        )
        lambda_rd: float = Field(
            0.5,
            ge=0,
            le=1,
            description="share of the distillation in the loss; 0: without it",
            source="Dong et al. 2022",
            space=Space(low=0.0, high=1.0),
        )
        compensate: bool = Field(
            True, description="whether samples are weighed by how far their class's logit has to go; if not, w = 1"
        )
        loss: Literal["bce", "softmax"] = Field(
            "bce", description="binary cross-entropies, as in the authors' code, or a softmax, as in their text"
        )

    def begin_client_task(self, client: Client) -> None:
        """Herds what to keep of the tasks that have ended."""
        client.memory = herd(client, client.past, self.params.memory)

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the compensated loss, from the second task on with the distillation."""
        parts = (batch, *batch.memories)
        joined = torch.cat(joint_logits(net, *parts))
        mask, labels = torch.cat([part.mask for part in parts]), torch.cat([part.labels for part in parts])
        old, logits = batch.task.offset, joined[:, : batch.task.seen]
        softmax = self.params.loss == "softmax"
        losses = class_losses(logits, labels, softmax)
        if old and self.params.compensate:
            losses = compensation(logits, labels, labels < old, mask, softmax) * losses
        if "teacher" in context:
            with torch.no_grad():
                taught = torch.cat(joint_logits(net.under(context["teacher"]), *parts))[:, :old]
            kept = relation_losses(logits, labels, taught, softmax)
            losses = (1.0 - self.params.lambda_rd) * losses + self.params.lambda_rd * kept
        sizes = [len(part.mask) for part in parts]
        pairs = zip(torch.split(losses, sizes), [part.mask for part in parts], strict=True)
        return torch.stack([(own * rows).sum() / rows.sum().clamp(min=1.0) for own, rows in pairs]).mean()

    def broadcast(self, server: Server) -> Message:
        """Sends the teacher (to whom it is new); nothing in the first task."""
        return {"teacher": server.state["teacher"]} if "teacher" in server.state else {}

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Makes the final global model the next teacher."""
        if not server.last_task and self.params.lambda_rd > 0:
            server.state["teacher"] = server.vector.clone()


def class_losses(logits: torch.Tensor, labels: torch.Tensor, softmax: bool) -> torch.Tensor:
    """Returns each sample's loss `[n]` for logits `[n, K]`: the cross-entropy, or the mean of K binary ones."""
    if softmax:
        return F.cross_entropy(logits.float(), labels, reduction="none")
    return _binary(logits, F.one_hot(labels, logits.shape[1]).float())


def _binary(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").mean(dim=1)


def compensation(
    logits: torch.Tensor, labels: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, softmax: bool
) -> torch.Tensor:
    """Returns the weights w `[n]`: g over the mean of g among samples of old classes (bool `[n]`), or of new ones.

    g is 1 minus the probability of the sample's class, without gradient; samples of padding (mask 0) count in no mean.
    A kind whose g is 0 throughout keeps w = 1.
    """
    shown = logits.detach().float()
    chance = shown.softmax(dim=1) if softmax else shown.sigmoid()
    far = 1.0 - chance.gather(1, labels[:, None])[:, 0]
    means = []
    for kind in (old, ~old):
        rows = mask * kind
        means.append((far * rows).sum() / rows.sum().clamp(min=1.0))
    mean = torch.where(old, means[0], means[1])
    return torch.where(mean > 0, far / mean, 1.0)


def relation_losses(logits: torch.Tensor, labels: torch.Tensor, taught: torch.Tensor, softmax: bool) -> torch.Tensor:
    """Returns each sample's loss `[n]` against its label with the teacher's view of the old classes.

    `taught` `[n, o]` are the teacher's logits of the old classes, the first of the K in `logits` `[n, K]`.
    """
    old, onehot = taught.shape[1], F.one_hot(labels, logits.shape[1]).float()
    view = taught.float().softmax(dim=1) if softmax else taught.float().sigmoid()
    target = torch.cat([view, onehot[:, old:]], dim=1)
    if not softmax:
        return _binary(logits, target)
    target = target / target.sum(dim=1, keepdim=True)
    return F.kl_div(logits.float().log_softmax(dim=1), target, reduction="none").sum(dim=1)
