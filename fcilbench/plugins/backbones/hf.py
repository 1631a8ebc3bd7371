"""Text models of `transformers`, from the hub or from a folder: `hf-encoder` and `t5`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fcilbench.api import FeatureExtractor, Field, TextBackbone, TokenIds, UsageError, file_digest
from fcilbench.plugins.backbones import text


class ModelParams(text.TextParams):
    """Hyperparameters of a backbone that is named by hub or folder."""

    model: str = Field(description="hub name, or a folder with config.json, tokenizer.json and weights")
    weights: Literal["pretrained", "none"] = Field("pretrained", description="`none` is a random initialisation")


class _ModelBackbone(TextBackbone):
    """A text backbone with its own tokenizer; a folder is identified by its content."""

    def encode(self, texts: Sequence[str]) -> TokenIds:
        """Returns the texts as token ids."""
        return text.tokenize(text.load_tokenizer(self.params.model), texts, self.params.max_length)

    def identity(self) -> dict[str, Any]:
        """Returns the parameters, a folder replaced by the digest of its content."""
        if not self.files():
            return {**super().identity(), "model": f"hub:{self.params.model}"}
        parts = [f"{path.name}:{file_digest(path)}" for path in self.files()]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return {**super().identity(), "model": f"sha256:{digest}"}

    def files(self) -> list[Path]:
        """Returns the files of a model folder that decide its outputs: configuration, weights, tokenizer."""
        folder = text.folder_of(self.params.model)
        suffixes = (".json", ".safetensors", ".bin", ".model", ".txt")
        return [] if folder is None else sorted(path for path in folder.iterdir() if path.suffix in suffixes)

    def _load(self, loader: Any) -> Any:
        if self.params.weights == "pretrained":
            return text.load_model(loader, self.params.model)
        return self._random(loader)

    def _random(self, loader: Any) -> Any:
        from transformers import AutoConfig

        config = text.from_pretrained(AutoConfig, self.params.model)
        try:
            return getattr(loader, "from_config", loader)(config)
        except ImportError as error:
            raise text.needs_library(self.params.model, error) from None


class HfEncoder(_ModelBackbone):
    """An encoder from the hub or from a folder, with its own tokenizer (Devlin et al. 2019 and its successors).

    The feature is the first token's last hidden state (`cls`) or the mean over the tokens; an unused pooler is left
    out, so that nothing is sent that never trains.
    """

    version = "2"  # families that read boolean masks (DeBERTa) got the features of padding

    class Params(ModelParams):
        """Which encoder, and how its tokens become one feature."""

        pooling: text.Pooling = Field("cls", description="first token, or mean over the tokens")

    def build(self) -> FeatureExtractor:
        """Builds the encoder, in fp32.

        Raises:
            PrerequisiteError: If it is not on this machine and not to be had from the hub, or lacks weights.
            UsageError: If it needs more than texts, or its features are not those of the text alone.
        """
        from transformers import AutoModel

        encoder, tokenizer = self._load(AutoModel), text.load_tokenizer(self.params.model)
        if encoder.config.is_encoder_decoder:
            advice = "use the backbone t5" if encoder.config.model_type == "t5" else "choose an encoder"
            raise UsageError(f"{self.params.model} is an encoder-decoder: {advice}")
        text.check_length(encoder, self.params.max_length, self.params.model)
        features = text.EncoderFeatures(encoder, tokenizer.pad_token_id, self.params.pooling)
        width = text.check_features(features, tokenizer, self.params.model, self.params.max_length)
        return FeatureExtractor(features, width)

    def instance_facts(self) -> dict[str, Any]:
        """Returns the facts; refuses a `max_length` or an adapter that a model on this machine does not take."""
        if text.folder_of(self.params.model):
            from transformers import AutoModel

            with torch.device("meta"):
                model = self._random(AutoModel)
                text.check_length(model, self.params.max_length, self.params.model)
                self.adapt(model)
        return super().instance_facts()


class T5(_ModelBackbone):
    """A T5 encoder-decoder (Raffel et al. 2020); T5-small has 60,506,624 parameters and 512 features.

    The encoder reads the text, the decoder one start token, whose last hidden state is the feature, as in
    fed-mammoth. With a single decoder token the decoder's self-attention has one key, so its query and key never train.
    """

    version = "1"

    class Params(ModelParams):
        """Which T5, and its decoder's start token."""

        model: str = Field("google-t5/t5-small", description="hub name, or a folder with config, tokenizer and weights")
        start_token: int = Field(1, ge=0, description="the decoder's one token", source="fed-mammoth; T5's own is 0")

    def build(self) -> FeatureExtractor:
        """Builds the model, in fp32."""
        from transformers import T5Model

        model, tokenizer = self._load(T5Model), text.load_tokenizer(self.params.model)
        features = text.DecoderTokenFeatures(model, tokenizer.pad_token_id, self.params.start_token)
        return FeatureExtractor(features, model.config.d_model)
