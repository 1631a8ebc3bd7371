"""Any BERT-like encoder of `transformers`."""

from __future__ import annotations

from fcilbench.api.backbone import FeatureExtractor
from fcilbench.plugins.backbones import text
from fcilbench.spec.params import Field


class HfEncoder(text.ModelBackbone):
    """An encoder from the hub or from a folder, with its own tokenizer (Devlin et al. 2019 and its successors).

    The feature is the first token's last hidden state (`cls`) or the mean over the tokens; an unused pooler is left
    out, so that nothing is sent that never trains.
    """

    version = "1"

    class Params(text.ModelParams):
        """Which encoder, and how its tokens become one feature."""

        pooling: text.Pooling = Field("cls", description="first token, or mean over the tokens")

    def build(self) -> FeatureExtractor:
        """Builds the encoder, in fp32.

        Raises:
            PrerequisiteError: If it is not on this machine and not to be had from the hub.
        """
        from transformers import AutoModel

        encoder = self._load(AutoModel)
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None
        features = text.EncoderFeatures(encoder, self._tokenizer().pad_token_id, self.params.pooling)
        return FeatureExtractor(features, encoder.config.hidden_size)
