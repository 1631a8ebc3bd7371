"""What L2P and CODA-Prompt share: a frozen vision transformer that takes prompts, and the query that chooses them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from fcilbench.api import BARE, Aggregator, Batch, FeatureExtractor, Net, No, Request, Transformer, lora_layers


class PromptedViT(FeatureExtractor):
    """A frozen vision transformer of timm whose forward pass takes prompts that depend on the sample.

    The query q(x) `[B, D]` is the feature of x under the transformer without prompts. In a run it is the sample's memo,
    so that it is computed once; without a memo a second forward pass computes it.

    Args:
        plain: The extractor that holds the transformer; its parameters are frozen.
    """

    body: Any  # a timm VisionTransformer
    transformer: Transformer

    def __init__(self, plain: FeatureExtractor) -> None:
        super().__init__(plain.body.requires_grad_(False), plain.feature_dim, plain.channels_last)
        self.transformer = cast("Transformer", plain.transformer)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps images `[B, C, size, size]` to features `[B, F]`, prompts included."""
        return self.outputs(inputs, {})["features"]

    def outputs(self, inputs: torch.Tensor, context: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns `features` `[B, F]` and what the method adds, with the query from `memo` if the context has it."""
        if "bare" in context:
            return {"features": self.body(inputs)}
        query = context.get("memo")
        if query is None:
            with torch.no_grad():
                query = self.body(inputs)
        return self.prompted(inputs, query)

    @abstractmethod
    def prompted(self, inputs: torch.Tensor, query: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the outputs for images, with the prompts that queries `[B, D]` choose."""

    def tokens(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns what enters the first block: class token and patches with their positions, `[B, tokens, D]`."""
        body = self.body
        tokens: torch.Tensor = body.norm_pre(body.patch_drop(body._pos_embed(body.patch_embed(inputs))))
        return tokens


class PromptMethod(Aggregator):
    """Base of the methods that freeze the backbone and train prompts and the classifier head."""

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Freezes the transformer and inserts the prompts; declines any other network."""
        plain, name = network.extractor, type(self).__name__
        assert isinstance(plain, FeatureExtractor)
        if plain.transformer is None or not _is_timm_vit(plain.body):
            return No(f"{name} adds prompts to the tokens of a timm vision transformer, and this backbone is none")
        if lora_layers(plain):
            return No(f"{name} freezes the backbone, whose adapters would then do nothing: leave out `adapter`")
        return self.insert(network, plain, request)

    @abstractmethod
    def insert(self, network: Any, plain: FeatureExtractor, request: Request) -> No | None:
        """Replaces the network's plain extractor by one with prompts, or says why the method does not run here."""

    def query(self, net: Net, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the features of the transformer without prompts, `[B, D]`."""
        return net.outputs(inputs, BARE)["features"]

    @staticmethod
    def outputs(net: Net, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Runs the prompted network on a batch, with the batch's queries where they are known."""
        return net.outputs(batch.inputs, {} if batch.memo is None else {"memo": batch.memo})


def _is_timm_vit(body: nn.Module) -> bool:
    from timm.models.vision_transformer import VisionTransformer  # here, so that listing plugins does not import timm

    return isinstance(body, VisionTransformer)
