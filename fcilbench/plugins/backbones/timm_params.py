"""What a suite may say about a timm backbone, checked as far as it can be without building the model."""

from __future__ import annotations

import difflib
from typing import Self

import timm
from pydantic import JsonValue, field_validator, model_validator
from timm.models import PretrainedCfg

from fcilbench.spec.params import Field
from fcilbench.spec.params import Params as BaseParams

RESERVED = ("num_classes", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")
"""Arguments of `timm.create_model` that this plugin sets, or that other parameters are for."""


class TimmParams(BaseParams):
    """Hyperparameters of the `timm` backbone."""

    model: str = Field(
        description="timm model name, with a pretrained tag if wanted: vit_base_patch16_224.augreg_in21k"
    )
    weights: str = Field(
        "hub", description="`hub`, `none` (random), or a .safetensors file: a path, or its name under DATA_ROOT/weights"
    )
    args: dict[str, JsonValue] = Field(
        default_factory=dict, description="model arguments for timm.create_model: img_size, patch_size, in_chans, ..."
    )
    input_size: int | None = Field(
        None, ge=1, description="height and width of inputs in pixels; default args.img_size, else the model's own"
    )
    mean: tuple[float, ...] | None = Field(None, description="input mean per channel; default the model's own")
    std: tuple[float, ...] | None = Field(None, description="input deviation per channel; default the model's own")

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        architecture, _, tag = model.partition(".")
        if not timm.is_model(architecture):
            close = difflib.get_close_matches(architecture, timm.list_models(), n=3, cutoff=0.6)
            near = f"; nearest: {', '.join(close)}" if close else ""
            raise ValueError(f"timm {timm.__version__} has no model {architecture!r}{near}")
        if tag and not timm.models.is_model_pretrained(model):
            tags = [name.partition(".")[2] for name in timm.list_pretrained(architecture)]
            raise ValueError(f"{architecture} has no pretrained tag {tag!r}; it has: {', '.join(tags) or 'none'}")
        return model

    @field_validator("weights")
    @classmethod
    def _kind(cls, weights: str) -> str:
        if weights not in ("hub", "none") and not weights.endswith(".safetensors"):
            raise ValueError(f"weights are 'hub', 'none' or a .safetensors file, not {weights!r}")
        return weights

    @field_validator("args")
    @classmethod
    def _free(cls, args: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := sorted(set(args) & set(RESERVED)):
            raise ValueError(f"{', '.join(taken)} cannot be set in args; use the keys model and weights")
        positive(args, "img_size", 1)
        positive(args, "in_chans", 3)
        return args

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        channels = positive(self.args, "in_chans", 3)
        size = self.input_size
        if size is not None and size != (own := positive(self.args, "img_size", size)):
            raise ValueError(f"input_size {size} differs from args.img_size {own}; give one of them")
        if self.weights == "hub" and not pretrained(self.model).has_weights:
            raise ValueError(f"{self.model} has no weights on the hub; set weights to none or to a .safetensors file")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != channels:
                raise ValueError(f"{name} has {len(values)} values for {channels} input channels")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError("std must be positive")
        return self


def pretrained(model: str) -> PretrainedCfg:
    """Returns what timm knows of a model's pretraining; timm's defaults if it knows nothing."""
    return timm.models.get_pretrained_cfg(model) or PretrainedCfg()


def positive(args: dict[str, JsonValue], key: str, default: int) -> int:
    """Returns a model argument that is a positive integer.

    Raises:
        ValueError: If it is anything else.
    """
    value = args.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"args.{key} must be a positive integer (images are square), not {value!r}")
    return value


def per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Returns one value per channel: the given ones, or their average where the number of channels is another."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels
