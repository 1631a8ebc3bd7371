"""LwF: Li and Hoiem 2016, "Learning without Forgetting", federated by FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F

from fcilbench.api import (
    Aggregator,
    Batch,
    Context,
    Field,
    Message,
    Net,
    PresetParams,
    Server,
    Space,
    masked_cross_entropy,
)


class Lwf(Aggregator):
    """Learning without Forgetting: distils the previous task's model on the new task's samples.

    From the second task on a client minimises L_CE + alpha L_old with L_old = -mean_i sum_c q_ic log s_ic, where
    q = softmax(z_T / tau) of the teacher's and s = softmax(z / tau) of its own logits over the old classes `[B, o]`.
    Cross-entropy and Kullback-Leibler have the same gradient; there is no factor tau^2. Li and Hoiem (equations 2 to 4)
    have one softmax for each old task and take the sum (`old_per_task`); their warm-up of the new head is left out.

    The teacher is the model with which the task began: a client that holds it is not sent it again.
    """

    version = "2"
    card: ClassVar = {
        "family": "regularisation",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "Li and Hoiem 2016, ECCV",
    }

    class Params(PresetParams):
        """Hyperparameters of LwF."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"distill_scope": "old_per_task"}}

        alpha: float = Field(
            1.0,
            ge=0,
            description="weight of the distillation; 0 is FedAvg",
            source="Li and Hoiem 2016",
            space=Space(low=0.01, high=10.0, log=True),
        )
        tau: float = Field(2.0, gt=0, description="temperature of both softmaxes", source="Li and Hoiem 2016")
        distill_scope: Literal["old_joint", "old_per_task"] = Field(
            "old_joint", description="one softmax over all old classes, or the sum over one for each old task"
        )

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy, plus alpha L_old where there is a teacher."""
        logits = net.logits(batch.inputs)
        loss = masked_cross_entropy(logits, batch)
        if "teacher" not in context:
            return loss
        with torch.no_grad():
            taught = net.under(context["teacher"]).logits(batch.inputs)
        old = batch.task.offset
        rows = distillation(logits[:, :old], taught[:, :old], self.params.tau, context.get("old_tasks"))
        total: torch.Tensor = loss + self.params.alpha * batch.mean(rows)
        return total

    def broadcast(self, server: Server) -> Message:
        """Sends the teacher (to whom it is new), and which old class is of which task; nothing in the first task."""
        if "teacher" not in server.state:
            return {}
        message = {"teacher": server.state["teacher"]}
        if self.params.distill_scope == "old_per_task":
            message["old_tasks"] = self._old_tasks(server)
        return message

    @staticmethod
    def _old_tasks(server: Server) -> torch.Tensor:
        """Returns bool `[t, o_t]`: row s is true for the classes of old task s."""
        old = server.tasks[:-1]
        member = torch.zeros(len(old), old[-1].seen, dtype=torch.bool, device=server.vector.device)
        for row, task in zip(member, old, strict=True):
            row[task.classes] = True
        return member

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Makes the final global model the next teacher."""
        if not server.last_task:
            server.state["teacher"] = server.vector.clone()


def distillation(
    student: torch.Tensor, teacher: torch.Tensor, tau: float, groups: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the cross-entropy `-sum_c q_c log s_c` of softmaxes at temperature tau, float32 `[B]`.

    Logits are `[B, K]`. With `groups`, bool `[G, K]` and each class in one of them, it is the sum over one softmax for
    each group. A softmax over a single class adds 0.
    """
    s, q = student.float() / tau, teacher.float() / tau
    if groups is None:
        return -(F.softmax(q, dim=1) * F.log_softmax(s, dim=1)).sum(dim=1)
    log_q, log_s = (z - _group_logsumexp(z, groups) for z in (q, s))
    return -(log_q.exp() * log_s).sum(dim=1)


def _group_logsumexp(logits: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Returns for each class the log-sum-exp over its group, `[B, K]`."""
    inside = logits[:, None, :].masked_fill(~groups, float("-inf")).logsumexp(dim=2)
    return torch.where(groups, inside[:, :, None], 0.0).sum(dim=1)
