"""Hyperparameters and ablation switches of SUM."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from fcilbench.spec.params import Field, Space
from fcilbench.spec.params import Params as BaseParams
from fcilbench.vectors.storage import Kind
from fcilbench.vectors.surgery import Target
from fcilbench.vectors.unify import MaskFrom, Rule

Switch = Literal["on", "off"]
_PAPER = "Kim and Do 2026, section 5.1"


class SumParams(BaseParams):
    """Hyperparameters of SUM; defaults of Kim and Do 2026, each switch a row of their ablation or an option."""

    # Spatial SUM
    z_thr: float | None = Field(
        4.5,
        gt=0,
        source=_PAPER,
        description="z-score beyond which an update's coordinate is zeroed; null: none",
    )
    trim: Literal["global", "tensor", "off"] = Field(
        "global", description="z-scores over the whole backbone, or over each of its tensors, or no trimming"
    )
    spatial_surgery: Switch = Field("on", description="projection surgery on client vectors")
    target: Target = Field("both", description="pairs of clients that surgery acts on, by the sign of their cosine")
    max_clients: int | None = Field(
        None, ge=1, description="project each client on at most so many others, those of the largest |cosine|"
    )
    lambda_s: float = Field(
        0.4,
        gt=0,
        source=_PAPER,
        description="scale of the SUM (not mean) over refined client vectors",
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
    selector: Literal["confidence", "energy", "prototype"] = Field(
        "confidence", description="how a sample's task is picked under task identity `inferred`"
    )

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
    def threshold(self) -> float | None:
        """z_thr, or `None` where nothing is trimmed."""
        return None if self.trim == "off" else self.z_thr

    @property
    def pairs(self) -> Target:
        """Which pairs of clients surgery acts on."""
        return self.target if self.spatial_surgery == "on" else "none"

    @property
    def source(self) -> MaskFrom | None:
        """Which vector of a task its mask and scale come from; `None` without masks."""
        return self.mask_from if self.mask == "on" else None
