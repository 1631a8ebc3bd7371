"""T5 encoder-decoders; T5-small is the language backbone of Kim and Do 2026."""

from __future__ import annotations

from fcilbench.api.backbone import FeatureExtractor
from fcilbench.plugins.backbones import text
from fcilbench.spec.params import Field


class T5(text.ModelBackbone):
    """A T5 encoder-decoder (Raffel et al. 2020); T5-small has 60,506,624 parameters and 512 features.

    The encoder reads the text, the decoder one start token, whose last hidden state is the feature, as in
    fed-mammoth. With a single decoder token the decoder's self-attention has one key, so its query and key never train.
    """

    version = "1"

    class Params(text.ModelParams):
        """Which T5, and its decoder's start token."""

        model: str = Field("google-t5/t5-small", description="hub name, or a folder with config, tokenizer and weights")
        start_token: int = Field(1, ge=0, description="the decoder's one token", source="fed-mammoth; T5's own is 0")

    def build(self) -> FeatureExtractor:
        """Builds the model, in fp32.

        Raises:
            PrerequisiteError: If it is not on this machine and not to be had from the hub.
        """
        from transformers import T5Model

        model = self._load(T5Model)
        features = text.DecoderTokenFeatures(model, self._tokenizer().pad_token_id, self.params.start_token)
        return FeatureExtractor(features, model.config.d_model)
