"""Any vision model of timm as a backbone, with weights from its hub, from a file, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import timm
import torch
from pydantic import JsonValue, field_validator, model_validator
from timm.models import PretrainedCfg
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fcilbench.api import (
    Backbone,
    FeatureExtractor,
    Field,
    ImageInput,
    PrerequisiteError,
    Size,
    Transformer,
    UsageError,
    file_digest,
    find_weights,
)
from fcilbench.plugins.backbones.checkpoint import load_all, read_safetensors
from fcilbench.plugins.backbones.timm_names import current_name

RESERVED = ("num_classes", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")
"""Arguments of `timm.create_model` that this plugin sets, or that other parameters are for."""
_WORDS = ("yes", "no", "on", "off", "true", "false")


class Timm(Backbone):
    """Any timm model without its classifier (Wightman, PyTorch Image Models, doi:10.5281/zenodo.4414861).

    Dropout and stochastic depth are timm's defaults unless `args` sets them: off for a ViT, a ResNet and a ConvNeXt, on
    for Swin, NesT and a few others (`drop_path_rate: 0` turns it off). It also reads arrays of channels, height and
    width, such as spectrograms: these are neither resized nor normalised here.

    Example:
        >>> Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args={"img_size": 64, "patch_size": 8}))
    """

    version = "1"
    reads = ("vision", "array")
    kit_params: ClassVar[Mapping[str, Any]] = {
        "model": "vit_tiny_patch16_224",
        "weights": "none",
        "args": {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2},
    }

    class Params(Backbone.Params):
        """Model, weights, arguments and input."""

        model: str = Field(
            description="timm model name, with a tag if wanted: vit_base_patch16_224.augreg_in21k; or in short "
            "vit-tiny, vit-small, vit-base, vit-large, convnext-tiny, convnext-small, convnext-base (ImageNet-21k)"
        )
        weights: str = Field(
            "hub",
            description="`hub`, `none` (random), or a .safetensors file: a path, or its name under DATA_ROOT/weights",
        )
        args: dict[str, JsonValue] = Field(
            default_factory=dict,
            description="model arguments for timm.create_model: img_size, patch_size, in_chans, ...",
        )
        input_size: Size | None = Field(
            None,
            description="pixels of inputs: one number, or [height, width]; default args.img_size, else the model's own",
        )
        mean: tuple[float, ...] | None = Field(None, description="input mean per channel; default the model's own")
        std: tuple[float, ...] | None = Field(None, description="input deviation per channel; default the model's own")

        @field_validator("model")
        @classmethod
        def _known(cls, model: str) -> str:
            return current_name(model)

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
            image_size(args, 1)
            positive(args, "in_chans", 3)
            for name, value in args.items():
                if isinstance(value, str) and value.lower() in _WORDS:
                    raise ValueError(
                        f"args.{name} is the text {value!r}, which Python takes for true: write true or false"
                    )
            return args

        @model_validator(mode="after")
        def _consistent(self) -> Self:
            channels = positive(self.args, "in_chans", 3)
            size = self.input_size
            if size is not None and size != (own := image_size(self.args, size)):
                raise ValueError(f"input_size {size} differs from args.img_size {own}; give one of them")
            if self.weights == "hub" and not pretrained(self.model).has_weights:
                raise ValueError(
                    f"{self.model} has no weights on the hub; set weights to none or to a .safetensors file"
                )
            for name, values in (("mean", self.mean), ("std", self.std)):
                if values is not None and len(values) != channels:
                    raise ValueError(f"{name} has {len(values)} values for {channels} input channels")
            if self.std is not None and min(self.std) <= 0:
                raise ValueError("std must be positive")
            return self

    def build(self) -> FeatureExtractor:
        """Builds the model on the CPU in fp32, in training mode: maps `[B, C, height, width]` to `[B, F]`.

        F is measured: timm's `num_features` is not the size of the output of a model with a hidden layer in its head.

        Raises:
            PrerequisiteError: If the weights are not on this machine or do not fit.
            UsageError: If timm rejects `args`, or the model does not give one vector an image.
        """
        model = self._create().float()
        if path := self._path():
            names = pretrained(self.params.model).classifier or ()
            heads = (names,) if isinstance(names, str) else names
            load_all(model, read_safetensors(path), model_name=self.params.model, path=path, classifiers=heads)
        # A ViT has one convolution, its patch embedding, and gains nothing.
        convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
        self._check_patches(model)
        extractor = FeatureExtractor(model, self._feature_dim(model), channels_last=convolutions > 1)
        if isinstance(model, VisionTransformer):
            tokens = model.patch_embed.num_patches + model.num_prefix_tokens
            first: Any = model.blocks[0]
            extractor.transformer = Transformer(tokens, model.embed_dim, len(model.blocks), first.attn.num_heads)
        return extractor

    def image_input(self) -> ImageInput:
        """Returns size and normalisation: what `params` say, else what the model was pretrained with."""
        own = pretrained(self.params.model)
        channels = positive(self.params.args, "in_chans", 3)
        height, width = own.input_size[1:]
        size: Size = width if height == width else (height, width)
        return ImageInput(
            size=image_size(self.params.args, self.params.input_size or size),
            channels=channels,
            mean=self.params.mean or per_channel(own.mean, channels),
            std=self.params.std or per_channel(own.std, channels),
        )

    def identity(self) -> dict[str, Any]:
        """Returns the hyperparameters with the defaults that come from timm filled in, since those may change with it.

        A weights file is named by its content, weights of the hub by their tag.
        """
        wanted = self.image_input()
        resolved = {"input_size": wanted.size, "mean": list(wanted.mean), "std": list(wanted.std)}
        identity = super().identity() | resolved
        if self.params.weights == "hub":
            own = pretrained(self.params.model)
            identity["weights"] = f"hub:{own.architecture}.{own.tag}"
        elif path := self._path():
            identity["weights"] = f"sha256:{file_digest(path)}"
        return identity

    def forward_flops(self) -> float | None:
        """Returns the operations of one image's forward pass; refuses an adapter that does not fit the model."""
        name = self.params.model
        args: dict[str, Any] = dict(self.params.args)
        return image_flops(lambda: self.adapt(timm.create_model(name, num_classes=0, **args)), self.image_input())

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

    def _check_patches(self, model: nn.Module) -> None:
        """Refuses an image size that is no multiple of the patch: timm ignores the pixels at the border."""
        patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
        patches = patch if isinstance(patch, tuple | list) else (patch, patch)
        for size, side in zip(self.image_input().shape, patches, strict=False):
            if isinstance(side, int) and size % side:
                below = size // side * side
                near = [each for each in (below, below + side) if each]
                raise UsageError(
                    f"{self.params.model} has patches of {side} pixels, which do not fill an image of {size}",
                    hint=f"set args.img_size to {' or '.join(map(str, near))}",
                )

    def _feature_dim(self, model: nn.Module) -> int:
        shape = (1, *self.input_shape())
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


def pretrained(model: str) -> PretrainedCfg:
    """Returns what timm knows of a model's pretraining; timm's defaults if it knows nothing."""
    return timm.models.get_pretrained_cfg(model) or PretrainedCfg()


def positive(args: dict[str, JsonValue], key: str, default: int) -> int:
    """Returns a model argument; raises ValueError if it is no positive integer."""
    value = args.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"args.{key} must be a positive integer, not {value!r}")
    return value


def image_size(args: dict[str, JsonValue], default: Size) -> Size:
    """Returns `img_size` of the model arguments, one number or two; raises ValueError if it is neither."""
    value = args.get("img_size")
    if value is None:
        return default
    if isinstance(value, list) and len(value) == 2:
        height, width = (positive({"img_size": each}, "img_size", 1) for each in value)
        return height, width
    return positive(args, "img_size", 1)


def per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Returns the given values, or their average for each channel where the number of channels is another."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels


def image_flops(create: Callable[[], nn.Module], wanted: ImageInput) -> float | None:
    """Returns the operations of the model that `create` builds for one image, or `None` if they cannot be told.

    Raises:
        UsageError: If `create` does.
    """
    try:
        with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
            create().eval()(torch.zeros(1, wanted.channels, *wanted.shape))
    except UsageError:
        raise
    except Exception:  # an estimate is not worth an error; `build` says what is wrong with a model
        return None
    return float(counter.get_total_flops())
