"""Methods that merge one vector of each task: what TIES-Merging, DARE and EMR-Merging share over tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from fcilbench.api import Aggregator, AllClasses, Field, Message, MostConfident, Params, Predictors, Server, TrueTask
from fcilbench.vectors.module import Basis, Stored, read, store

_MERGED = "merged"


class TaskVectorParams(Params):
    """Options of a method that merges task vectors."""

    task_start: Literal["pretrained", "current"] = Field(
        "pretrained",
        description="where a task's training starts over tasks: from theta_pre, as the sources' experts, or from the "
        "last global model, whose vector holds all earlier tasks",
    )
    storage: Literal["fp32", "fp16"] = Field("fp32", description="how the server keeps the task vectors")


class TaskVectorMethod(Aggregator):
    """Base of methods that merge the tasks' vectors tau_t = theta^(t) - theta_pre on the backbone.

    Each task is trained by FedAvg. The published methods merge experts that were each trained from theta_pre; so by
    default the backbone of each task starts there, while the head stays, of which each task owns its rows. Buffers are
    those of the last global model. The merged model is deployed, and no client ever starts from it.
    """

    params: TaskVectorParams

    def _merges_tasks(self) -> bool:
        """Returns whether tasks are merged at all, and not clients."""
        return True

    def _kept(self, vector: torch.Tensor, server: Server) -> torch.Tensor:
        """Returns what is kept of a task's vector."""
        return vector

    def begin(self, server: Server) -> None:
        """Remembers theta_pre of the backbone."""
        if self._merges_tasks():
            server.state.update(pre=server.vector[server.layout.backbone].clone(), vectors=[], open=False)
            if server.layout.buffers.start < server.layout.buffers.stop:
                server.warn("task vectors leave out float buffers (BatchNorm): those of the last task are deployed")

    def begin_task(self, server: Server) -> None:
        """Takes the backbone back to theta_pre."""
        if self._merges_tasks():
            server.state["open"] = True
            if self.params.task_start == "pretrained":
                reach(server, server.state["pre"], server.layout.backbone)

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Keeps the task's vector."""
        if self._merges_tasks():
            server.state["open"] = False
            kept = self._kept(self._present(server), server)
            server.state["vectors"].append(store(kept, self.params.storage))

    def _present(self, server: Server) -> torch.Tensor:
        vector: torch.Tensor = server.vector[server.layout.backbone] - server.state["pre"]
        return vector

    def _vectors(self, server: Server) -> Basis:
        """Returns the vectors of the tasks so far; during a task its present one counts as well."""
        vectors: list[Stored] = list(server.state["vectors"])
        return [*vectors, self._present(server)] if server.state["open"] else vectors

    def _learned(self, server: Server) -> Basis:
        """Returns the tasks' vectors but those that are 0: an idle task has learned nothing that a mean may count."""
        whole = slice(0, server.layout.backbone.stop)
        return [vector for vector in self._vectors(server) if bool(read(vector, whole).any())]

    def _model(self, server: Server, change: torch.Tensor) -> torch.Tensor:
        """Returns the state vector with the backbone theta_pre + `change`, and the present head and buffers."""
        vector = server.vector.clone()
        vector[server.layout.backbone] = server.state["pre"] + change
        return vector


def one_model(build: Callable[[], torch.Tensor]) -> Predictors:
    """Returns the predictors of a method that deploys one merged model for all tasks."""
    return Predictors(
        {_MERGED: build},
        {"none": AllClasses(_MERGED), "inferred": MostConfident(_MERGED), "oracle": TrueTask(_MERGED)},
    )


def reach(server: Server, value: torch.Tensor, part: slice) -> None:
    """Steps a part of the global vector to `value`, to the last bit.

    `a + (b - a)` rounds; after a step the two are so close that the next difference is exact.
    """
    while not torch.equal(server.vector[part], value):
        server.step(value - server.vector[part], part)
