"""What the text backbones share: tokenizing, pooling, loading from a folder or the hub."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fcilbench.api.backbone import TextBackbone, TokenIds
from fcilbench.data.root import find_weights, sha256_file
from fcilbench.errors import PrerequisiteError
from fcilbench.spec.params import Field
from fcilbench.spec.params import Params as BaseParams

Pooling = Literal["mean", "cls"]


class TextParams(BaseParams):
    """Hyperparameters that every text backbone has."""

    max_length: int = Field(128, ge=4, description="tokens a text is cut to, special tokens included")


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int) -> TokenIds:
    """Returns texts as token ids, cut to `max_length` and padded on the right to the longest.

    Args:
        tokenizer: A `transformers` tokenizer with a padding token.
        texts: The texts; an empty one becomes its special tokens.
        max_length: Tokens a text is cut to.
    """
    rows = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    lengths = np.array([max(1, len(row)) for row in rows], dtype=np.int64)
    ids = np.full((len(rows), int(lengths.max(initial=1))), tokenizer.pad_token_id, dtype=np.int32)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = row
    return TokenIds(ids, lengths, int(tokenizer.pad_token_id))


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Returns features `[B, F]` of hidden states `[B, length, F]`.

    Args:
        hidden: Hidden states.
        mask: int64 `[B, length]`, 1 for a token and 0 for padding.
        pooling: `mean` over the tokens, or the first token (`cls`).
    """
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.to(hidden.dtype)[:, :, None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


def hide_padding(mask: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Returns the additive attention mask `[B, 1, 1, length]`: 0 for a token, the lowest number for padding.

    `transformers` looks at the values of a mask `[B, length]` to choose a kernel, which neither a CUDA graph nor
    per-sample gradients (`torch.func.vmap`) can follow; one of this form it takes as it is, to the same result.

    Args:
        mask: int64 `[B, length]`, 1 for a token and 0 for padding.
        model: Whose dtype the mask gets.
    """
    dtype = next(model.parameters()).dtype
    hidden = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask == 0, torch.finfo(dtype).min)
    return hidden[:, None, None, :]


class EncoderFeatures(nn.Module):
    """A `transformers` encoder that pools its last hidden states, padding masked out everywhere.

    Args:
        encoder: The encoder.
        pad: Id of the padding token.
        pooling: How the tokens become one feature.
    """

    def __init__(self, encoder: nn.Module, pad: int, pooling: Pooling) -> None:
        super().__init__()
        self.encoder = encoder
        self._pad, self._pooling = pad, pooling

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Maps token ids `[B, length]` to features `[B, F]`."""
        mask = (ids != self._pad).long()
        hidden: torch.Tensor = self.encoder(
            input_ids=ids, attention_mask=hide_padding(mask, self.encoder)
        ).last_hidden_state
        return pool(hidden, mask, self._pooling)


class DecoderTokenFeatures(nn.Module):
    """A T5-like encoder-decoder; its feature is the decoder's state at one start token, as in fed-mammoth.

    Args:
        model: The encoder-decoder.
        pad: Id of the padding token.
        start: Id of the decoder's one token.
    """

    def __init__(self, model: nn.Module, pad: int, start: int) -> None:
        super().__init__()
        self.model = model
        self._pad, self._start = pad, start

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Maps token ids `[B, length]` to features `[B, F]`."""
        mask = (ids != self._pad).long()
        start = torch.full((len(ids), 1), self._start, dtype=torch.long, device=ids.device)
        visible = hide_padding(mask, self.model)
        output = self.model(input_ids=ids, attention_mask=visible, decoder_input_ids=start, use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden[:, 0]


def folder_of(model: str) -> Path | None:
    """Returns the folder of a model on this machine (a path, or below the data root's `weights/`), if there is one."""
    try:
        return find_weights(f"{model}/config.json").parent
    except PrerequisiteError:
        return None


def content_files(folder: Path) -> list[Path]:
    """Returns the files of a model folder that decide its outputs: configuration, weights, tokenizer."""
    return sorted(
        path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".bin", ".model", ".txt")
    )


def content_identity(folder: Path) -> str:
    """Returns one digest of a model folder's content, whatever its path."""
    parts = [f"{path.name}:{sha256_file(path)}" for path in content_files(folder)]
    return "sha256:" + hashlib.sha256("\n".join(parts).encode()).hexdigest()


def from_pretrained(loader: Any, model: str, **options: Any) -> Any:
    """Loads a tokenizer, configuration or model from its folder or the hub.

    Raises:
        PrerequisiteError: If it is neither on this machine nor to be had from the hub.
    """
    folder = folder_of(model)
    try:
        return loader.from_pretrained(str(folder or model), local_files_only=folder is not None, **options)
    except (OSError, ValueError) as error:
        offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
        reason = str(error).strip().splitlines()[0]
        raise PrerequisiteError(
            f"text model {model!r} cannot be loaded{' (the hub is switched off)' if offline else ''}: {reason}",
            hint=f"put its folder (config.json, tokenizer.json, model.safetensors) at <data root>/weights/{model}",
        ) from None


class ModelParams(TextParams):
    """Hyperparameters of a backbone that is named by hub or folder."""

    model: str = Field(description="hub name, or a folder with config.json, tokenizer.json and weights")
    weights: Literal["pretrained", "none"] = Field("pretrained", description="`none` is a random initialisation")


class ModelBackbone(TextBackbone):
    """A text backbone from the hub or from a folder, with its own tokenizer; a folder is identified by its content."""

    def encode(self, texts: Sequence[str]) -> TokenIds:
        """Returns the texts as token ids."""
        return tokenize(self._tokenizer(), texts, self.params.max_length)

    def identity(self) -> dict[str, Any]:
        """Returns the parameters, a folder replaced by the digest of its content."""
        folder = folder_of(self.params.model)
        model = f"hub:{self.params.model}" if folder is None else content_identity(folder)
        return {**super().identity(), "model": model}

    def files(self) -> list[Path]:
        """Returns the files of a model folder."""
        folder = folder_of(self.params.model)
        return [] if folder is None else content_files(folder)

    def _load(self, loader: Any) -> Any:
        """Returns the model with its weights, or a random one, in fp32."""
        if self.params.weights == "none":
            from transformers import AutoConfig

            config = from_pretrained(AutoConfig, self.params.model)
            make = getattr(loader, "from_config", None) or loader
            return make(config)
        return from_pretrained(loader, self.params.model, dtype="float32")

    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return from_pretrained(AutoTokenizer, self.params.model)
