"""What the text backbones share: tokens, transformers' own attention masks, pooling, and models with all weights."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn

from fcilbench.api import Backbone, Field, PrerequisiteError, TokenIds, UsageError, find_weights
from fcilbench.plugins.backbones.checkpoint import key_problems

Pooling = Literal["mean", "cls"]


class TextParams(Backbone.Params):
    """Hyperparameters that every text backbone has."""

    max_length: int = Field(128, ge=4, description="tokens a text is cut to, special tokens included")


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int) -> TokenIds:
    """Returns texts as token ids, cut to `max_length` and padded on the right to the longest.

    An empty text becomes its special tokens, or one padding token.
    """
    rows = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    lengths = np.array([max(1, len(row)) for row in rows], dtype=np.int64)
    ids = np.full((len(rows), int(lengths.max(initial=1))), tokenizer.pad_token_id, dtype=np.int32)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = row
    return TokenIds(ids, lengths, int(tokenizer.pad_token_id))


def token_mask(ids: torch.Tensor, pad: int) -> torch.Tensor:
    """Returns the mask int64 `[B, length]`: 1 for a token, 0 for padding.

    The first place always counts, so that the features of an empty text do not depend on its batch.
    """
    first = torch.arange(ids.shape[1], device=ids.device) == 0
    return ((ids != pad) | first).long()


class EncoderFeatures(nn.Module):
    """A `transformers` encoder; its feature is the mean of the last hidden states, or the first token's (`cls`).

    Tokens of the id `pad` are masked out everywhere. The encoder's pooler is left out, as nothing here uses it.
    """

    def __init__(self, encoder: nn.Module, pad: int, pooling: Pooling) -> None:
        super().__init__()
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = nn.Identity()  # not None: LayoutLM and SqueezeBERT call it in any case
        self.encoder = always_masked(encoder)
        self._pad, self._pooling = pad, pooling

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Maps token ids `[B, length]` to features `[B, F]`."""
        mask = token_mask(ids, self._pad)
        hidden: torch.Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        if self._pooling == "cls":
            return hidden[:, 0]
        weights = mask.to(hidden.dtype)[:, :, None]
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


class DecoderTokenFeatures(nn.Module):
    """A T5-like encoder-decoder; its feature is the decoder's state at one start token, as in fed-mammoth."""

    def __init__(self, model: nn.Module, pad: int, start: int) -> None:
        super().__init__()
        self.model = always_masked(model)
        self._pad, self._start = pad, start

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Maps token ids `[B, length]` to features `[B, F]`."""
        start = torch.full((len(ids), 1), self._start, dtype=torch.long, device=ids.device)
        mask = token_mask(ids, self._pad)
        output = self.model(input_ids=ids, attention_mask=mask, decoder_input_ids=start, use_cache=False)
        feature: torch.Tensor = output.last_hidden_state[:, 0]
        return feature


def always_masked(model: Any) -> Any:
    """Makes a `transformers` model use its attention mask even in a batch without padding, and returns it.

    The model makes its mask from one of `[B, length]`, in the form that its family needs. By default it looks at the
    values of the mask and leaves it out if nothing is masked, which neither a CUDA graph nor per-sample gradients
    (`torch.func.vmap`) can follow. `transformers` has a register of attention implementations for such a purpose.
    """
    _register()
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation("fcilbench_sdpa")
    elif model.config._attn_implementation == "eager":
        model.config._attn_implementation = "fcilbench_eager"
    return model


@functools.cache
def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import eager_mask, sdpa_mask

    def always(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: make(*args, **{**options, "allow_is_bidirectional_skip": False})

    def eager(module: nn.Module, *args: Any, **options: Any) -> Any:
        return sys.modules[type(module).__module__].eager_attention_forward(module, *args, **options)

    AttentionInterface.register("fcilbench_sdpa", sdpa_attention_forward)
    AttentionInterface.register("fcilbench_eager", eager)  # each family's own, as under the name "eager"
    AttentionMaskInterface.register("fcilbench_sdpa", always(sdpa_mask))
    AttentionMaskInterface.register("fcilbench_eager", always(eager_mask))


def folder_of(model: str) -> Path | None:
    """Returns the folder of a model on this machine (a path, or below the data root's `weights/`), if there is one."""
    try:
        return find_weights(f"{model}/config.json").parent
    except PrerequisiteError:
        return None


def from_pretrained(loader: Any, model: str, **options: Any) -> Any:
    """Loads a tokenizer, configuration or model from its folder or the hub; else raises `PrerequisiteError`."""
    folder = folder_of(model)
    try:
        return loader.from_pretrained(str(folder or model), local_files_only=folder is not None, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
        reason = str(error).strip().splitlines()[0]
        raise PrerequisiteError(
            f"text model {model!r} cannot be loaded{' (the hub is switched off)' if offline else ''}: {reason}",
            hint=f"put its folder (config.json, tokenizer.json, model.safetensors) at <data root>/weights/{model}",
        ) from None
    except ImportError as error:
        raise needs_library(model, error) from None


def needs_library(model: str, error: ImportError) -> PrerequisiteError:
    """Returns the error for a model whose family needs a library that is not installed, as LayoutLMv2 does."""
    reason = str(error).strip().splitlines()[0]
    return PrerequisiteError(f"text model {model!r} needs more: {reason}", hint="install it, or choose another model")


def load_tokenizer(model: str) -> Any:
    """Loads a tokenizer; one that cannot pad is a `PrerequisiteError`."""
    from transformers import AutoTokenizer

    tokenizer = from_pretrained(AutoTokenizer, model)
    if tokenizer.pad_token_id is None:
        raise PrerequisiteError(
            f"the tokenizer of {model!r} has no padding token",
            hint="name one as pad_token in a copy of the model's folder (tokenizer_config.json)",
        )
    return tokenizer


def load_model(loader: Any, model: str, **options: Any) -> Any:
    """Loads a model in fp32. A checkpoint that lacks weights, which would be random, is a `PrerequisiteError`."""
    loaded, info = from_pretrained(loader, model, dtype="float32", output_loading_info=True, **options)
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))  # no backbone uses it
    if missing:
        raise PrerequisiteError(
            f"the checkpoint of {model!r} lacks weights: {key_problems(missing, sorted(info['unexpected_keys']))}",
            hint="get the complete checkpoint of this model, or set weights to none for a random one",
        )
    return loaded


def check_length(model: nn.Module, max_length: int, name: str) -> None:
    """Raises `UsageError` for a `max_length` that is beyond a model's table of positions."""
    for path, table in model.named_modules():
        if path.endswith("position_embeddings") and isinstance(table, nn.Embedding):
            # RoBERTa and its like count positions from the one after their padding id.
            positions = table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
            if max_length > positions:
                raise UsageError(f"max_length is {max_length}, {name} has {positions} positions: give {positions}")


def check_features(features: nn.Module, tokenizer: Any, name: str, max_length: int) -> int:
    """Returns the number of features F of a model that reads texts alone.

    Raises:
        UsageError: If its forward pass needs more than texts, or its features depend on padding, or do not depend on
            every word.
    """
    special, pad, length = set(tokenizer.all_special_ids), tokenizer.pad_token_id, min(max_length, 16)
    one, two, three = [id_ for id_ in range(len(tokenizer)) if id_ not in special][:3]
    long = [one, two, three, two, one, one, three][:length]
    rows = ([one, two], [one, three], [one, two, *[pad] * 6], long, long + [pad] * (length - len(long)))
    was = features.training
    features.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            plain, other, padded, alone, among = (features(torch.tensor([row])) for row in rows)
        except Exception as error:  # whatever a family asks for: places of words on a page, images, a language
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise UsageError(
                f"{name} does not read texts alone: {reason}",
                hint="choose an encoder of texts, such as BERT, RoBERTa, DeBERTa or ModernBERT",
            ) from error
    features.train(was)
    for expected, found in ((plain, padded), (alone, among)):
        if not float((expected - found).abs().max()) < 1e-4 * (1.0 + float(expected.abs().max())):
            raise UsageError(f"{name} gives a text other features when it is padded: choose another model")
    if torch.equal(plain, other):
        raise UsageError(f"the feature of {name} does not depend on the second word: set pooling to mean")
    return int(plain.shape[1])
