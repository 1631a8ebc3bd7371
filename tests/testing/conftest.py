"""Small text models with random weights, and small data sets, in folders as users have them."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # weights that are not in the cache are a skip, not a wait

WORDS = ("[PAD]", "[UNK]", "</s>", "a", "good", "small", "test", "text", "one", "short", "the", "of", "four", "last")


@pytest.fixture(scope="session")
def text_models(tmp_path_factory):
    """Returns folders of a BERT and a T5 of two layers, by name."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, T5Config, T5Model

    torch.manual_seed(0)
    size = {"vocab_size": len(WORDS), "pad_token_id": 0}
    bert = BertConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, **size)
    t5 = T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, **size)
    folders = {}
    for name, model in (("bert", BertModel(bert)), ("t5", T5Model(t5))):
        raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
        raw.pre_tokenizer = pre_tokenizers.Whitespace()
        folder = tmp_path_factory.mktemp(name)
        PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", eos_token="</s>").save_pretrained(folder)
        model.save_pretrained(folder)
        folders[name] = str(folder)
    return folders


@pytest.fixture(scope="session")
def own_data(tmp_path_factory):
    """Returns a folder with images in class folders and a CSV file of texts: three classes of four samples."""
    from PIL import Image

    root, lines = tmp_path_factory.mktemp("own"), ["text,label"]
    for label, name in enumerate(("cat", "dog", "eel")):
        (root / "images" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (9, 8), (40 * label + i, 0, 0)).save(root / "images" / name / f"{i}.png")
            lines.append(f"{name} number {i},{name}")
    (root / "texts.csv").write_text("\n".join(lines))
    return root
