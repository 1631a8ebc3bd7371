"""Backbones: feature extractors that the federation trains; the classifier head is the federation's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fcilbench.api.dataset import Modality
from fcilbench.api.lora import Lora, freeze_batch_norm, insert_lora
from fcilbench.spec import params as _params
from fcilbench.spec.plugin import Plugin


@dataclass(frozen=True)
class ImageInput:
    """Size and normalisation of a vision backbone's inputs.

    Attributes:
        size: Height and width in pixels, one number where they are equal; images are resized to it on the device
            (bicubic, antialiased).
        channels: Number of channels; single-channel images are repeated.
        mean: Per channel, on the [0, 1] scale.
        std: Per channel, on the [0, 1] scale.
    """

    size: int | tuple[int, int]
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size


@dataclass(frozen=True)
class TokenIds:
    """Texts as token ids `[n, length]`, int32, padded on the right with the id `pad`.

    `lengths` is the number of tokens of each text, int64 `[n]`, at least 1.
    """

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    pad: int


@dataclass(frozen=True)
class Transformer:
    """The shape of a plain vision transformer, for methods that insert prompts or adapters.

    `tokens` counts the tokens of one input, class and register tokens included; `depth` the blocks.
    """

    tokens: int
    width: int
    depth: int
    heads: int


BARE: Mapping[str, torch.Tensor] = {"bare": torch.zeros(0)}
"""The context that asks an extractor for the features of the backbone alone."""


class FeatureExtractor(nn.Module):
    """A module that maps inputs to features.

    Attributes:
        feature_dim: Number of features F.
        channels_last: Whether images are in channels-last memory on a CPU: many convolutions are faster that way, but
            code that calls `view` on its inputs fails.
        transformer: Shape of a plain vision transformer; `None` for any other network.
    """

    feature_dim: int
    channels_last: bool
    transformer: Transformer | None = None

    def __init__(self, body: nn.Module, feature_dim: int, channels_last: bool = False) -> None:
        super().__init__()
        self.body = body
        self.feature_dim, self.channels_last = feature_dim, channels_last

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to features `[B, F]`.

        Inputs are normalised images `[B, channels, height, width]`, token ids `[B, length]`, or arrays `[B, ...]`.
        """
        features: torch.Tensor = self.body(inputs)
        return features

    def outputs(self, inputs: torch.Tensor, context: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runs one forward pass and returns its named outputs; by default `features` `[B, F]` alone.

        In `prepare` a method may replace the extractor by a subclass whose forward pass reads the context (broadcasts
        and, as `memo`, the method's `query` of these samples) or returns more than features. It must also run with an
        empty context. An extractor that adds something to what passes, such as prompts, leaves it out where the context
        has `bare` (`BARE`): selectors read the same features for every method.
        """
        return {"features": self(inputs)}


class Backbone(Plugin):
    """A backbone plugin; its own `Params` derives from `Backbone.Params`, which has the options of every backbone.

    Attributes:
        reads: The modalities of the data sets that it takes.
    """

    reads: ClassVar[tuple[Modality, ...]] = ("vision",)

    class Params(_params.Params):
        """Options that every backbone has; the federation applies them to the network that `build` returns."""

        adapter: Lora | None = _params.Field(
            None,
            description="train low-rank adapters and the head, freeze the rest: {use: lora, rank: 4, alpha: 4, "
            "targets: [q, v]}; ffa-lora freezes A too; without targets all linear layers",
        )
        batch_norm: Literal["average", "freeze"] = _params.Field(
            "average",
            description="running statistics: averaged over the clients, or kept at their initial values and not sent",
        )

    @abstractmethod
    def build(self) -> FeatureExtractor:
        """Builds the model with its (pretrained) weights on the CPU, in fp32, from torch's global generator.

        Raises:
            PrerequisiteError: If weights are missing on this machine.
        """

    def adapt(self, network: nn.Module) -> nn.Module:
        """Freezes and adapts a network as the options of `Backbone.Params` say, in place, and returns it.

        Raises:
            UsageError: If the adapter has a target that the network does not have.
        """
        if getattr(self.params, "batch_norm", "average") == "freeze":
            freeze_batch_norm(network)
        if (lora := getattr(self.params, "adapter", None)) is not None:
            insert_lora(network, lora.rank, lora.alpha, lora.targets, train_a=lora.use == "lora")
        return network

    def image_input(self) -> ImageInput:
        """Returns size and normalisation of the inputs of a vision backbone.

        Raises:
            TypeError: If the backbone does not read images.
        """
        raise TypeError(f"{type(self).__name__} does not read images")

    def input_shape(self) -> tuple[int, ...]:
        """Returns the shape of one input, by default that of an image: channels, height, width.

        A backbone that reads arrays alone says it here. Arrays of a data set must have this shape.

        Raises:
            TypeError: If the backbone reads text.
        """
        image = self.image_input()
        return image.channels, *image.shape

    def forward_flops(self) -> float | None:
        """Returns the floating-point operations of one input's forward pass (a multiply-add is two), `None`: unknown.

        It is a function of the hyperparameters: neither weights nor network are needed.
        """
        return None

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Returns which modalities it reads."""
        return {"reads": list(cls.reads)}

    def instance_facts(self) -> dict[str, Any]:
        """Returns the operations of a forward pass, for estimates of cost, and the shape of an array that it reads."""
        shape = list(self.input_shape()) if "array" in self.reads else None
        return {"forward_flops": self.forward_flops(), "input_shape": shape}


class TextBackbone(Backbone):
    """A backbone that reads token ids `[B, length]`; it masks the padding itself, so that it changes no logit."""

    reads: ClassVar[tuple[Modality, ...]] = ("text",)

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> TokenIds:
        """Returns the texts as token ids of one length, cut and padded.

        Raises:
            PrerequisiteError: If the tokenizer is missing on this machine.
        """
