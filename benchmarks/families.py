"""Which families of text models `hf-encoder` runs, and what timm's old names stand for: two tables.

Each family of encoders in `transformers` is built small and random, saved as the hub lays models out, and opened by
`hf-encoder`. Its features must be those of the library, which keeps its pooler; else it must be refused by one line.

python -m benchmarks.families
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from fcilbench.errors import FcilbenchError
from fcilbench.plugins.backbones.hf import HfEncoder
from fcilbench.plugins.backbones.timm import Timm

WORDS = ("[PAD]", "</s>", "[UNK]", "book", "a", "table", "for", "two")
LENGTHS = (1, 7, 16)
_NARROW = "hidden_size dim d_model emb_dim embedding_size n_embd d_latents entity_emb_size"
_WIDE = "intermediate_size hidden_dim d_ff d_inner n_inner encoder_ffn_dim decoder_ffn_dim"
_TWO = (
    "num_hidden_layers num_attention_heads num_key_value_heads n_layers n_heads n_layer n_head num_layers num_heads "
    "encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads"
)
_EIGHT = "vocab_size head_dim attention_head_size d_head d_kv entity_vocab_size"
_PLACES = "max_position_embeddings n_positions"
_SIZES = {_NARROW: 16, _WIDE: 32, _TWO: 2, _EIGHT: 8, _PLACES: 32, "pad_token_id": 0, "bos_token_id eos_token_id": 1}
SMALL = {key: size for keys, size in _SIZES.items() for key in keys.split()}
"""Values of the sizes that configurations have; each family takes those that it knows."""
SPECIAL: dict[str, dict[str, Any]] = {
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
    "funnel": {"block_sizes": [1, 1], "num_hidden_layers": None},
    "layoutlmv3": {"coordinate_size": 2, "shape_size": 4},
    "lilt": {"hidden_size": 24},
    "neomme": {"head_dim": 16},
    "perceiver": {"num_latents": 4, "num_self_attends_per_block": 1, "num_cross_attention_heads": 2},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local"], "feed_forward_size": 32},
    "roc_bert": {"pronunciation_vocab_size": 8, "shape_vocab_size": 8},
}
_LARGEST = 3_000_000  # parameters; families of several networks, whose parts have sizes of their own, are not built


def families() -> list[str]:
    """Returns the families of which `transformers` has a masked language model, or a text encoder or classifier.

    Those that it has as causal language models are left out, unless they are encoders, too.
    """
    encoders = {*modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, *modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES}
    classifiers = {
        *modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    }
    wanted = encoders | (classifiers - {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES})
    return sorted(wanted & {*modeling_auto.MODEL_MAPPING_NAMES})


def small_config(family: str) -> Any:
    """Returns a family's configuration with the sizes of `SMALL` that it has, and those of `SPECIAL`."""
    default = CONFIG_MAPPING[family]()
    options = {key: value for key, value in SMALL.items() if hasattr(default, key)} | SPECIAL.get(family, {})
    config = AutoConfig.for_model(family, **{key: value for key, value in options.items() if value is not None})
    networks = modeling_auto.MODEL_MAPPING_NAMES[family]
    if isinstance(networks, tuple):  # as Funnel with and without its decoder; a checkpoint says which
        config.architectures = [networks[0]]
    return config


def save(folder: Path, model: Any) -> None:
    """Writes a folder as the hub lays it out: a word-level tokenizer and a model."""
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", eos_token="</s>").save_pretrained(folder)
    model.save_pretrained(folder)


def family_row(family: str) -> dict[str, str]:
    """Returns what `hf-encoder` makes of a family.

    Keys: the family; `verdict` ("works", "refused", "not built" here, or "broken"); `detail`: the largest difference
    of a feature from the library's for texts of several lengths in one batch, and the parameters that no text trains;
    or the reason.
    """
    try:
        config = small_config(family)
        with torch.device("meta"):
            count = sum(each.numel() for each in AutoModel.from_config(config).parameters())
        if count > _LARGEST:
            return _row(family, "not built", f"{count:,} parameters with the sizes that are set here")
        torch.manual_seed(0)
        library = AutoModel.from_config(config).eval()
    except Exception as error:  # what a family's own code asks of a configuration or of the machine
        return _row(family, "not built", str(error).strip().partition("\n")[0])
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), library)
        try:
            plugin = HfEncoder(HfEncoder.Params(model=folder, max_length=max(LENGTHS), pooling="mean"))
            plugin.instance_facts()
            return _row(family, *_compared(plugin.build().eval(), library))
        except FcilbenchError as error:
            return _row(family, "refused", str(error).replace(folder, "MODEL"))
        except Exception as error:
            return _row(family, "broken", f"{type(error).__name__}: {error}".partition("\n")[0])


def _compared(model: Any, library: Any) -> tuple[str, str]:
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    for row, length in zip(ids, LENGTHS, strict=True):
        row[:length] = torch.arange(length) % 5 + 3
    with torch.no_grad():
        found = model(ids)
    difference = 0.0
    for feature, row, length in zip(found, ids, LENGTHS, strict=True):
        mask = torch.ones(1, length, dtype=torch.long)
        with torch.no_grad():
            hidden = library(input_ids=row[None, :length], attention_mask=mask).last_hidden_state
        difference = max(difference, float((feature - hidden[0].mean(dim=0)).abs().max()))
    model.train()(ids).square().sum().backward()
    idle = [name for name, each in model.named_parameters() if each.grad is None]
    if found.shape[1] != model.feature_dim:
        return "broken", f"{found.shape[1]} features for {model.feature_dim}"
    rest = f"; no text trains {len(idle)} tensors, as {idle[0].removeprefix('body.encoder.')}" if idle else ""
    return "works" if difference < 1e-5 else "broken", f"{difference:.0e} from the library{rest}"


def _row(family: str, verdict: str, detail: str) -> dict[str, str]:
    return {"family": family, "verdict": verdict, "detail": detail.replace("|", "/")}


def name_rows() -> list[dict[str, str]]:
    """Returns what this package makes of each old name of timm."""
    rows = []
    for old, mapped in timm.models.get_deprecated_models().items():
        row = {"old name": old, "timm": str(mapped), "here": "", "mean": "", "std": "", "pixels": ""}
        try:
            plugin = Timm(Timm.Params(model=old))
        except ValueError as error:
            reason = str(error).splitlines()[2].strip().removeprefix("Value error, ").partition(" [type")[0]
            rows.append({**row, "here": f"refused: {reason}"})
            continue
        wanted = plugin.image_input()
        mean, std = (", ".join(f"{value:.3g}" for value in values) for values in (wanted.mean, wanted.std))
        rows.append({**row, "here": plugin.params.model, "mean": mean, "std": std, "pixels": str(wanted.size)})
    return rows


def markdown(rows: list[dict[str, str]]) -> str:
    """Returns rows of equal keys as a Markdown table."""
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Prints both tables as Markdown."""
    from benchmarks.common import origin  # a test loads this file where `benchmarks` is no package

    quiet()
    versions = f"transformers {transformers.__version__}, timm {timm.__version__}"
    print(f"# Families of text models and old names of timm\n\n{origin()}; {versions}.\n")
    print(f"{markdown([family_row(each) for each in families()])}\n\n{markdown(name_rows())}")


def quiet() -> None:
    """Keeps what the library says of random weights and of progress off the screen."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


if __name__ == "__main__":
    main()
