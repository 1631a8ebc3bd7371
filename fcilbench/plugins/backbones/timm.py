"""Any vision model of timm as a backbone, with weights from its hub, from a file, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput
from fcilbench.data.root import find_weights, sha256_file
from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.plugins.backbones.checkpoint import load_all, read_safetensors, without_classifier
from fcilbench.plugins.backbones.flops import image_flops
from fcilbench.plugins.backbones.timm_params import TimmParams, per_channel, positive, pretrained


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
            names = pretrained(self.params.model).classifier or ()
            heads = (names,) if isinstance(names, str) else names
            state = without_classifier(read_safetensors(path), model, heads)
            load_all(model, state, model_name=self.params.model, path=path)
        # A ViT has one convolution, its patch embedding, and gains nothing.
        convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
        return FeatureExtractor(model, self._feature_dim(model), channels_last=convolutions > 1)

    def image_input(self) -> ImageInput:
        """Returns size and normalisation: what `params` say, else what the model was pretrained with.

        Where the model has other than three channels, its mean and deviation are averaged over the three.
        """
        own = pretrained(self.params.model)
        channels = positive(self.params.args, "in_chans", 3)
        return ImageInput(
            size=positive(self.params.args, "img_size", self.params.input_size or own.input_size[-1]),
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
        if path := self._path():
            identity["weights"] = f"sha256:{sha256_file(path)}"
        return identity

    def forward_flops(self) -> float | None:
        """Returns the operations of one image's forward pass."""
        wanted, name = self.image_input(), self.params.model
        args: dict[str, Any] = dict(self.params.args)
        return image_flops(
            lambda: timm.create_model(name, pretrained=False, num_classes=0, **args), wanted.channels, wanted.size
        )

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
