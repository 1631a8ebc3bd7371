"""SUM (Surgery & Merge): projections on the server, over clients in each round and over tasks at each task's end.

Kim and Do 2026, "SUM: Unified Geometric Surgery on Spatio-Temporal Adaptation Vectors for Federated Class Incremental
Learning". Its mathematics is in `fcilbench.vectors.surgery` (clients) and `fcilbench.vectors.module` (tasks).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import field_validator, model_validator

from fcilbench.api import (
    Aggregator,
    AllClasses,
    Client,
    DecisionRule,
    Field,
    Message,
    MostConfident,
    Predictors,
    PresetParams,
    Server,
    Space,
    TaskIdentity,
    TrueTask,
    Updates,
    nbytes,
    pack_symmetric,
    unpack_symmetric,
)
from fcilbench.vectors.module import Cut, Kind, MaskFrom, Modulators, Packed, Rule, cut, project_out, read, store, unify
from fcilbench.vectors.regmean import regmean
from fcilbench.vectors.sums import weighted_sum
from fcilbench.vectors.surgery import (
    Target,
    Trimmed,
    coefficients,
    gram,
    mean_pairwise_cosine,
    merge,
    step_cosine,
    surgery_matrix,
)

Switch = Literal["on", "off"]
_MODULE = "task-{}"
_PAPER = "Kim and Do 2026, section 5.1"


class SumParams(PresetParams):
    """Hyperparameters of SUM; defaults of Kim and Do 2026, each switch a row of their ablation or an option.

    The preset `sound` projects a client only off those that it disagrees with, so that no client counts negatively, and
    its scale is FedAvg's.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"sound": {"target": "negative", "lambda_s": "auto"}}

    preset: Literal["default", "sound"] = Field(  # type: ignore[assignment]
        "default", description="set of values that single options override: the paper's, or no client negative"
    )

    # Spatial SUM
    z_thr: float | None = Field(
        4.5, gt=0, source=_PAPER, description="z-score beyond which an update's coordinate is zeroed; null: none"
    )
    trim: Literal["global", "tensor", "off"] = Field(
        "global", description="z-scores over the whole backbone, or over each of its tensors, or no trimming"
    )
    spatial_surgery: Switch = Field("on", description="projection surgery on client vectors")
    # Without a search space: on other pairs of clients it is another method, and on `none` one without its idea.
    target: Target = Field(
        "both",
        description="pairs of clients that surgery acts on, by the sign of their cosine",
    )
    max_clients: int | None = Field(
        None, ge=1, description="project each client on at most so many others, those of the largest |cosine|"
    )
    lambda_s: float | Literal["auto"] = Field(
        0.4,
        source=_PAPER,
        description="scale of the SUM (not mean) over the n refined client vectors; auto: 1 / n, FedAvg's step length",
        space=Space(low=0.05, high=1.0),
    )
    # Classifier head
    head: Literal["regmean", "sum"] = Field("regmean", description="how the classifier head is merged")
    gamma_head: float = Field(0.5, ge=0, le=1, description="off-diagonal factor of RegMean's Gram on the head")
    # Temporal SUM
    temporal_surgery: Switch = Field("on", description="projection of a task's vector on the earlier ones")
    max_basis: int | None = Field(
        None, ge=1, description="project a task on at most so many earlier ones, those of the largest |cosine|"
    )
    storage: Kind = Field("fp32", description="how the basis is kept on the server")
    storage_keep: float = Field(0.1, gt=0, le=1, description="fraction of a basis vector that storage `topk` keeps")
    # Inference-ready module
    sparsify: Switch = Field("on", description="keep only the largest entries of each basis vector")
    k_pct: float = Field(
        0.05,
        gt=0,
        le=1,
        source=_PAPER,
        description="fraction (not per cent) of each basis vector that is kept",
        space=Space(low=0.01, high=0.2),
    )
    elect: Rule = Field("count", description="sign of tau_uni: majority, sign of the sum, unanimity; off: plain sum")
    mask: Switch = Field("on", description="a task's own mask and scale; off: theta_pre + tau_uni for every task")
    mask_from: MaskFrom = Field("accumulated", description="mask and scale from tau_k (as printed) or tau_hat_k")

    @field_validator("lambda_s")
    @classmethod
    def _moves(cls, scale: float | Literal["auto"]) -> float | Literal["auto"]:
        if scale != "auto" and scale <= 0:
            raise ValueError("must be greater than 0, or auto")
        return scale

    @model_validator(mode="after")
    def _no_idle_option(self) -> Self:
        """Refuses an option that another one leaves without effect: its cell would be a duplicate in disguise."""
        for idle, why, need in (
            (self.trim == "tensor" and self.z_thr is None, "trim: tensor", "a z_thr > 0"),
            (self.spatial_surgery == "off" and self.target != "both", f"target: {self.target}", "spatial_surgery: on"),
            (self.pairs == "none" and self.max_clients is not None, "max_clients", "surgery on client vectors"),
            (self.temporal_surgery == "off" and self.max_basis is not None, "max_basis", "temporal_surgery: on"),
            (self.storage != "topk" and self.storage_keep != 0.1, "storage_keep", "storage: topk"),
            (self.mask == "off" and self.mask_from == "refined", "mask_from: refined", "mask: on"),
        ):
            if idle:
                raise ValueError(f"{why} has no effect here: it needs {need}")
        return self

    @property
    def pairs(self) -> Target:
        """Which pairs of clients surgery acts on."""
        return self.target if self.spatial_surgery == "on" else "none"

    @property
    def source(self) -> MaskFrom | None:
        """Which vector of a task its mask and scale come from; `None` without masks."""
        return self.mask_from if self.mask == "on" else None


class Sum(Aggregator):
    """SUM: orthogonal surgery on client vectors and on task vectors, and one unified module for all tasks.

    Each round: theta_G <- theta_G + lambda_S sum_i tau_hat_i on the backbone, RegMean on the head (section 4.2,
    equation 7), with tau_hat_i = tau_i - sum_{j != i} (<tau_i, tau_j> / ||tau_j||^2) tau_j of the client vectors tau_i
    `[D]`, trimmed by z-score (equation 5). At the end of a task its vector joins an orthogonal basis (section 4.3,
    equation 9), from which the modules of all tasks are rebuilt (section 4.4). Training goes on from theta_G: the
    modules are what is deployed. Where the election's two readings part, ours is the majority (`elect`).
    """

    version = "4"  # no option `selector`: a suite names selectors for every method
    card: ClassVar = {
        "family": "geometry",
        "trained": "the whole model",
        "travels": "the model; a Gram matrix of the head's inputs",
        "memory": "nothing",
        "source": "Kim and Do 2026",
    }
    breaks: ClassVar[Mapping[str, str]] = {
        "one-client": "the round adds lambda_s times the client's vector, also where there is only one",
        "identical-clients": "projections of equal vectors cancel: n of them step by lambda_s n (2 - n) vectors",
    }

    class Params(SumParams):
        """Hyperparameters of SUM."""

    params: SumParams

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends the Gram matrix of the head's inputs (upper triangle, summed in float64) if RegMean merges the head."""
        if self.params.head == "sum":
            return {}
        features = (client.net.features(batch.inputs).double() for batch in client.batches())
        total = sum((inputs.T @ inputs for inputs in features), torch.zeros((), dtype=torch.float64))
        return {"gram_head": pack_symmetric(total.float())}

    # ---------------------------------------------------------------- server, each round

    def begin(self, server: Server) -> None:
        """Remembers the pretrained model and starts an empty basis."""
        server.state.update(pre=server.vector.clone(), basis=[], coefficients=[], sizes=[], cuts=[])

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Merges the backbone by spatial surgery, the head by RegMean, buffers by their mean."""
        server.step(self._spatial(updates, server), server.layout.backbone)
        server.step(self._head(updates), server.layout.head)
        server.step(updates.mean(server.layout.buffers), server.layout.buffers)

    def _spatial(self, updates: Updates, server: Server) -> torch.Tensor:
        """Returns lambda_S sum_i tau_hat_i `[D]`: passes for the statistics, the Gram matrix and the weighted sum."""
        options, backbone = self.params, server.layout.backbone
        pieces = [piece.span for piece in server.layout.pieces if piece.span.stop <= backbone.stop]
        segments = [span.stop - span.start for span in pieces] if options.trim == "tensor" else None
        vectors = Trimmed(updates.backbone, None if options.trim == "off" else options.z_thr, segments)
        products = gram(vectors)
        surgery = surgery_matrix(products, options.pairs, options.max_clients)
        weights = coefficients(surgery)
        scale = 1.0 / len(updates.clients) if options.lambda_s == "auto" else options.lambda_s
        direction, flips = merge(scale * weights, vectors)
        cosine = step_cosine(weights, products)
        for name, value in (
            ("coefficient_min", weights.min()),
            ("coefficient_mean", weights.mean()),
            ("coefficient_max", weights.max()),
            ("cosine_before", mean_pairwise_cosine(products)),
            ("cosine_after", mean_pairwise_cosine(surgery @ products @ surgery.T)),
            ("step_cosine", cosine),
            ("sign_flips", flips),
            ("trimmed_share", int(vectors.zeroed) / max(1, updates.backbone.numel())),
        ):
            server.log(f"sum/{name}", float(value))
        if bool((weights < 0).any()):
            server.warn(
                "sum: a client coefficient is negative (clients more alike than cosine 1/(n-1)); "
                "see sum/coefficient_min in the curve"
            )
        if cosine < 0:
            server.warn(
                "sum: a round stepped against the clients' mean update, away from what they learned (clients more "
                "alike than cosine 1/(n-1)); see sum/step_cosine in the curve"
            )
        return direction

    def _head(self, updates: Updates) -> torch.Tensor:
        if self.params.head == "sum":
            return weighted_sum(torch.ones(len(updates.clients)), updates.delta[:, updates.layout.head])
        features = updates.layout.features
        grams = (unpack_symmetric(message["gram_head"], features) for message in updates.statistics)
        weight = regmean(updates.head_weight, grams, updates.weights, self.params.gamma_head)
        return torch.cat([weight.flatten(), weighted_sum(updates.weights, updates.head_bias)])

    # ---------------------------------------------------------------- server, end of a task

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Adds the task's vector to the basis; elects tau_uni and scales all tasks anew."""
        options, state, backbone = self.params, server.state, server.layout.backbone
        self._extend_basis(server, server.vector[backbone] - state["pre"][backbone])
        cuts = [Cut(*numbers) for numbers in state["cuts"]] if options.sparsify == "on" else None
        state["unified"] = unify(state["basis"], cuts, options.elect, server.vector.device)
        state["scales"] = self._modulators(server).scales()

    def _extend_basis(self, server: Server, task_vector: torch.Tensor) -> None:
        """Appends tau_hat_k, its coefficients, its L1 norm and its cut.

        A task that left the model as it was gets tau_hat_k = 0 and the coefficients of the task before, whatever the
        storage lost: it has no vote in the election, and its own module is that of the task before (with `mask_from:
        refined`, where nothing is left of it, theta_pre).
        """
        options, state = self.params, server.state
        digest = _digest(task_vector).hex()
        if state["basis"] and digest == state["digest"]:
            refined, last = torch.zeros_like(task_vector), state["coefficients"][-1]
            kept = torch.cat([last, last.new_ones(1)])
        else:
            limit = options.max_basis if options.temporal_surgery == "on" else 0
            refined, kept = project_out(task_vector, state["basis"], limit)
        state["digest"] = digest
        size = refined if options.mask_from == "refined" else task_vector
        state["sizes"].append(float(torch.linalg.vector_norm(size, 1, dtype=torch.float64)))
        state["basis"].append(store(refined, options.storage, options.storage_keep))
        state["coefficients"].append(kept)
        if options.sparsify == "on":
            chosen = cut(read(state["basis"][-1], slice(0, len(refined))), options.k_pct)
            state["cuts"].append([chosen.magnitude, chosen.last])

    def _modulators(self, server: Server) -> Modulators:
        state = server.state
        return Modulators(state["basis"], state["coefficients"], state["sizes"], state["unified"], self.params.source)

    # ---------------------------------------------------------------- inference

    def predictors(self, server: Server) -> Predictors:
        """Deploys theta_G for `none`, and one module a task for `inferred` and `oracle`.

        The paper assumes that the task's module "can be selected at inference time" and leaves open how, so its numbers
        are those of `oracle`. Our rule of `inferred` needs nothing but the modules: the most confident one answers.
        """
        modules: dict[str, Callable[[], torch.Tensor]] = {"global": lambda: server.vector}
        for k in range(len(server.state["basis"])):
            modules[_MODULE.format(k)] = lambda k=k: self._deployed(server, k)  # type: ignore[misc]
        rules: dict[TaskIdentity, DecisionRule] = {"none": AllClasses(), "inferred": MostConfident(_MODULE)}
        return Predictors(modules, {**rules, "oracle": TrueTask(_MODULE)})

    def _deployed(self, server: Server, task: int) -> torch.Tensor:
        """Returns theta_infer of a task: theta_pre + m_k s_k tau_uni on the backbone, the current head and buffers."""
        backbone, scale = server.layout.backbone, float(server.state["scales"][task])
        vector = server.vector.clone()
        vector[backbone] = server.state["pre"][backbone] + self._modulators(server).deployed(task, scale)
        return vector

    def export(self, server: Server) -> Message:
        """Returns tau_uni, masks and scales packed, the head and the buffers; of theta_pre only a digest.

        Masks and scales are the evaluated ones to the last bit; tau_uni is rounded to fp16 under one power-of-two scale
        (2^-11 relative for entries down to 2^-29 of the largest). Where tau_uni fits fp16 so the whole vector is equal
        bit for bit.
        """
        parts, scales = server.layout, server.state["scales"]
        size, rest = parts.backbone.stop, {"head": server.vector[parts.head], "buffers": server.vector[parts.buffers]}
        return {
            **vars(Packed.of(self._modulators(server), scales)),
            **rest,
            "pretrained": torch.frombuffer(bytearray(_digest(server.state["pre"][parts.backbone])), dtype=torch.uint8),
            # tau_uni in fp16, one mask of D bits and one fp32 scale a task.
            "dense_bytes": torch.tensor(2 * size + len(scales) * (-(-size // 8) + 4) + nbytes(rest)),
        }


def _digest(vector: torch.Tensor) -> bytes:
    return hashlib.sha256(vector.cpu().numpy().data).digest()
