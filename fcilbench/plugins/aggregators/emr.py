"""EMR-Merging: Huang et al. 2024, "EMR-Merging: Tuning-Free High-Performance Model Merging"."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import ClassVar, Literal

import torch

from fcilbench.api import (
    AllClasses,
    DecisionRule,
    Field,
    Message,
    MostConfident,
    Predictors,
    Server,
    TaskIdentity,
    TrueTask,
    nbytes,
)
from fcilbench.plugins.aggregators.task_vectors import TaskVectorMethod, TaskVectorParams
from fcilbench.vectors.module import MaskFrom, Modulators, Packed, unify

_MODULE, _UNIFIED = "task-{}", "unified"


class EmrParams(TaskVectorParams):
    """Options of EMR-Merging, which has nothing to tune."""

    elect: Literal["mass", "count", "strict"] = Field(
        "mass",
        description="elected sign: of the sum, of more non-zero entries, or the one that all share",
        source="Huang et al. 2024",
    )
    mask: Literal["on", "off"] = Field("on", description="each task's own mask of the elected signs that it shares")
    rescale: Literal["l1", "none"] = Field(
        "l1", description="each task's own scale, which restores its L1 norm", source="Huang et al. 2024"
    )


class Emr(TaskVectorMethod):
    """EMR-Merging: elect one vector for all tasks, and keep a mask and a scale for each.

    Rounds are FedAvg's. At the end of a task tau_t = theta^(t) - theta_pre `[P]` of the backbone is kept, and with
    sigma = sign(sum_t tau_t) all are merged anew (Huang et al. 2024):

        tau_uni = sigma max{|tau_t| : tau_t sigma > 0},  m_t = [tau_t tau_uni > 0],
        lambda_t = ||tau_t||_1 / ||m_t tau_uni||_1.

    Task t deploys theta_pre + lambda_t m_t tau_uni with the present head. That needs the task's identity; without it
    theta_pre + tau_uni answers, in which tasks are mixed: the weakest of the three by design. Where a sum is exactly 0
    nothing is elected, while the authors' code elects -1; their script for vision also adds up means of tensors in
    lambda_t, which overweights the small ones, where ours follows the paper.
    """

    version = "1"
    card: ClassVar = {
        "family": "merging",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "Huang et al. 2024, NeurIPS",
    }

    class Params(EmrParams):
        """Options of EMR-Merging."""

    params: EmrParams

    def _merged(self, server: Server) -> tuple[Modulators, torch.Tensor]:
        """Returns tau_uni and the masks of the tasks so far, and their scales float32 `[T]`."""
        vectors = self._vectors(server)
        sizes = list(server.state["sizes"])
        if server.state["open"]:
            sizes.append(_size(self._present(server)))
        unified = unify(vectors, None, self.params.elect, server.vector.device)
        source: MaskFrom | None = "refined" if self.params.mask == "on" else None
        modulators = Modulators(vectors, (), sizes, unified, source)
        if self.params.rescale == "none":
            scales = torch.ones(len(sizes), device=unified.device)
        elif self.params.mask == "on":
            scales = modulators.scales()
        else:
            scales = torch.tensor(sizes, device=unified.device) / max(_size(unified), 1e-30)
        return modulators, scales

    def begin(self, server: Server) -> None:
        """Remembers theta_pre."""
        super().begin(server)
        server.state["sizes"] = []

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Keeps the task's vector and its L1 norm, whatever the storage loses."""
        server.state["sizes"].append(_size(self._present(server)))
        super().end_task(server, statistics)

    def predictors(self, server: Server) -> Predictors:
        """Deploys a module for each task, and for `none` theta_pre + tau_uni.

        `inferred` compares the confidence of different networks; a suite's selectors may pick better.
        """
        merged = cache(lambda: self._merged(server))
        modules: dict[str, Callable[[], torch.Tensor]] = {
            _UNIFIED: lambda: self._model(server, merged()[0].unified),
        }
        for index in range(len(self._vectors(server))):
            modules[_MODULE.format(index)] = lambda index=index: self._model(  # type: ignore[misc]
                server, merged()[0].deployed(index, float(merged()[1][index]))
            )
        rules: dict[TaskIdentity, DecisionRule] = {"none": AllClasses(_UNIFIED), "inferred": MostConfident(_MODULE)}
        return Predictors(modules, {**rules, "oracle": TrueTask(_MODULE)})

    def export(self, server: Server) -> Message:
        """Returns tau_uni in fp16, masks and scales packed as SUM's module is, head, buffers and theta_pre's digest."""
        parts, (modulators, scales) = server.layout, self._merged(server)
        size, rest = parts.backbone.stop, {"head": server.vector[parts.head], "buffers": server.vector[parts.buffers]}
        digest = hashlib.sha256(server.state["pre"].cpu().numpy().data).digest()
        return {
            **vars(Packed.of(modulators, scales)),
            **rest,
            "pretrained": torch.frombuffer(bytearray(digest), dtype=torch.uint8),
            # tau_uni in fp16, one mask of P bits and one fp32 scale a task.
            "dense_bytes": torch.tensor(2 * size + len(scales) * (-(-size // 8) + 4) + nbytes(rest)),
        }


def _size(vector: torch.Tensor) -> float:
    """Returns the L1 norm, summed in float64."""
    return float(torch.linalg.vector_norm(vector, 1, dtype=torch.float64))
