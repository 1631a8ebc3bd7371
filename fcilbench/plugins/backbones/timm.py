"""Any vision model of timm as a backbone, with weights from its hub, from a file, or none."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Self

import timm
import torch
from pydantic import JsonValue, field_validator, model_validator
from timm.models import PretrainedCfg
from torch import nn

from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput
from fcilbench.api.params import Field
from fcilbench.api.params import Params as BaseParams
from fcilbench.data.root import find_weights, sha256_file
from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.plugins.backbones.checkpoint import load_all, read_safetensors, without_classifier

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
        _positive(args, "img_size", 1)
        _positive(args, "in_chans", 3)
        return args

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        channels = _positive(self.args, "in_chans", 3)
        size = self.input_size
        if size is not None and size != (own := _positive(self.args, "img_size", size)):
            raise ValueError(f"input_size {size} differs from args.img_size {own}; give one of them")
        if self.weights == "hub" and not _pretrained(self.model).has_weights:
            raise ValueError(f"{self.model} has no weights on the hub; set weights to none or to a .safetensors file")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != channels:
                raise ValueError(f"{name} has {len(values)} values for {channels} input channels")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError("std must be positive")
        return self


class Timm(Backbone):
    """Any timm model without its classifier (Wightman, PyTorch Image Models, doi:10.5281/zenodo.4414861).

    Dropout and stochastic depth are timm's defaults, which are off, unless `args` sets them.

    Example:
        >>> Timm(TimmParams(model="vit_tiny_patch16_224", weights="none", args={"img_size": 64, "patch_size": 8}))
    """

    version = "1"

    class Params(TimmParams):
        """Model, weights, arguments and input."""

    params: TimmParams

    def build(self) -> FeatureExtractor:
        """Builds the model on the CPU in fp32, in training mode.

        Returns:
            Maps `[B, C, size, size]` to `[B, F]`, where F is measured on a forward pass: timm's `num_features` is not
            the size of the output where a model has a hidden layer in its head.

        Raises:
            PrerequisiteError: If the weights are not on this machine or do not fit.
            UsageError: If timm rejects `args`, or the model does not give one vector an image.
        """
        model = self._create().float()
        if path := self._path():
            names = _pretrained(self.params.model).classifier or ()
            heads = (names,) if isinstance(names, str) else names
            state = without_classifier(read_safetensors(path), model, heads)
            load_all(model, state, model_name=self.params.model, path=path)
        return FeatureExtractor(model, self._feature_dim(model))

    def image_input(self) -> ImageInput:
        """Returns size and normalisation: what `params` say, else what the model was pretrained with.

        Where the model has other than three channels, its mean and deviation are averaged over the three.
        """
        own = _pretrained(self.params.model)
        channels = _positive(self.params.args, "in_chans", 3)
        return ImageInput(
            size=_positive(self.params.args, "img_size", self.params.input_size or own.input_size[-1]),
            channels=channels,
            mean=self.params.mean or _per_channel(own.mean, channels),
            std=self.params.std or _per_channel(own.std, channels),
        )

    def identity(self) -> dict[str, Any]:
        """Returns the hyperparameters with the defaults that come from timm filled in, since those may change with it.

        A weights file is named by its content, weights of the hub by their tag.
        """
        wanted = self.image_input()
        resolved = {"input_size": wanted.size, "mean": list(wanted.mean), "std": list(wanted.std)}
        identity = super().identity() | resolved
        if self.params.weights == "hub":
            own = _pretrained(self.params.model)
            identity["weights"] = f"hub:{own.architecture}.{own.tag}"
        if path := self._path():
            identity["weights"] = f"sha256:{sha256_file(path)}"
        return identity

    def files(self) -> list[Path]:
        """Returns the weights file, if one is used."""
        path = self._path()
        return [path] if path else []

    def _path(self) -> Path | None:
        return None if self.params.weights in ("hub", "none") else find_weights(self.params.weights)

    def _create(self) -> nn.Module:
        name, hub = self.params.model, self.params.weights == "hub"
        args: dict[str, Any] = dict(self.params.args)
        try:
            model: nn.Module = timm.create_model(name, pretrained=hub, num_classes=0, **args)
        except TypeError as error:
            raise UsageError(f"timm model {name} does not take args {args}: {error}") from error
        except Exception as error:  # network, cache, or arguments that only the model can judge
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if not hub:
                raise UsageError(f"timm cannot build {name} with args {args}: {reason}") from error
            raise PrerequisiteError(
                f"cannot get the pretrained weights of timm model {name}: {reason}",
                hint="connect to the network once (later HF_HUB_OFFLINE=1 uses the cache alone), "
                "or set weights to a .safetensors file, or to none",
            ) from error
        return model

    def _feature_dim(self, model: nn.Module) -> int:
        wanted = self.image_input()
        shape = (1, wanted.channels, wanted.size, wanted.size)
        model.eval()  # BatchNorm buffers stay as they are
        try:
            with torch.no_grad():
                features = model(torch.zeros(shape))
        except (AssertionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"timm model {self.params.model} does not take inputs of {list(shape)}: {error}",
                hint="set args.img_size for models of a fixed size, else input_size",
            ) from error
        model.train()
        if not isinstance(features, torch.Tensor) or features.ndim != 2:
            raise UsageError(
                f"timm model {self.params.model} does not give one vector an image", hint="check args.global_pool"
            )
        return features.shape[1]


def _pretrained(model: str) -> PretrainedCfg:
    """Returns what timm knows of a model's pretraining; timm's defaults if it knows nothing."""
    return timm.models.get_pretrained_cfg(model) or PretrainedCfg()


def _positive(args: dict[str, JsonValue], key: str, default: int) -> int:
    value = args.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"args.{key} must be a positive integer (images are square), not {value!r}")
    return value


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels
