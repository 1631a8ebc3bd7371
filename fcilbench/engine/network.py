"""The trained network: a backbone's features and one linear head over all classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from fcilbench.api.backbone import FeatureExtractor


class Network(nn.Module):
    """Backbone plus classifier head, the head allocated once with all C rows.

    Args:
        extractor: The backbone.
        classes: Number of classes C.
    """

    def __init__(self, extractor: FeatureExtractor, classes: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = nn.Linear(extractor.feature_dim, classes)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps inputs to penultimate features `[B, F]`."""
        features: torch.Tensor = self.extractor(inputs)
        return features

    def outputs(self, inputs: torch.Tensor, context: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runs one forward pass and returns its named outputs, `features` `[B, F]` among them."""
        return self.extractor.outputs(inputs, context)

    def forward(
        self,
        inputs: torch.Tensor,
        part: Literal["logits", "features", "head", "outputs"] = "logits",
        context: Mapping[str, torch.Tensor] | None = None,
    ) -> Any:
        """Maps inputs to logits `[B, C]`, features `[B, F]` or all named outputs, or (`head`) features to logits."""
        if part == "outputs":
            return self.outputs(inputs, context or {})
        if part == "features":
            return self.features(inputs)
        logits: torch.Tensor = self.head(inputs if part == "head" else self.features(inputs))
        return logits
