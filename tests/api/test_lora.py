"""Low-rank adapters: values by hand, names, what is trained and sent."""

import pytest
import timm
import torch
from torch import nn
from transformers import BertConfig, BertModel, T5Config, T5Model

from fcilbench.api import insert_lora, lora_layers
from fcilbench.api.lora import Lora, LoraLinear, freeze_batch_norm
from fcilbench.engine.model import FlatModel, Network
from fcilbench.errors import UsageError
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.testing.bench import ConvNet, SmallViT


def layer(inputs, outputs, **options):
    linear = nn.Linear(inputs, outputs)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(outputs, inputs))
        linear.bias.fill_(1.0)
    return LoraLinear(linear, 1, **options)


def put(module, **values):
    with torch.no_grad():
        for name, value in values.items():
            module.get_parameter(name).copy_(torch.tensor(value))


def test_the_forward_pass_and_the_product_by_hand():
    module = layer(2, 3, alpha=2.0)
    x = torch.tensor([[1.0, 1.0]])
    assert module(x).tolist() == [[2, 2, 1]]  # B is 0: W x + 1
    put(module, lora_A=[[1.0, 2.0]], lora_B=[[1.0], [0.0], [2.0]])
    assert module.product().tolist() == [[2, 4], [0, 0], [4, 8]]
    assert module(x).tolist() == [[8, 2, 13]]


def test_query_and_value_of_a_fused_projection_by_hand():
    module = layer(2, 6, alpha=1.0, parts=["q", "v"])
    put(module, lora_A_q=[[1.0, 0.0]], lora_B_q=[[1.0], [2.0]], lora_A_v=[[0.0, 1.0]], lora_B_v=[[3.0], [4.0]])
    # x = (5, 7): W x + 1 = (6, 8, 1, 1, 1, 1); q adds 5 (1, 2), k nothing, v adds 7 (3, 4).
    assert module(torch.tensor([5.0, 7.0])).tolist() == [11, 18, 1, 1, 22, 29]
    assert module.product().tolist() == [[1, 0], [2, 0], [0, 0], [0, 0], [0, 3], [0, 4]]


def test_a_is_drawn_as_in_the_paper_and_the_seed_gives_the_same():
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(LoraLinear(nn.Linear(400, 8), 4, 4.0).lora_A.detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert 0.045 < float(drawn[0].abs().max()) <= 0.05  # 1 / sqrt(400)


def names(model):
    return [piece.name.removeprefix("extractor.body.") for piece in model.layout.pieces]


def test_the_state_vector_has_adapters_and_head_alone():
    network = Network(SmallViT().build(), 10)
    insert_lora(network.extractor, 2, 2.0, ["q", "v", "1.mlp.fc2"])
    model = FlatModel(network, torch.device("cpu"))
    factors = [f"attn.qkv.lora_{side}_{part}" for part in "qv" for side in "AB"]
    expected = [f"blocks.0.{f}" for f in factors] + [f"blocks.1.{f}" for f in factors]
    expected += ["blocks.1.mlp.fc2.lora_A", "blocks.1.mlp.fc2.lora_B", "head.weight", "head.bias"]
    assert names(model) == expected
    assert model.layout.piece("extractor.body.blocks.0.attn.qkv.lora_B_v").shape == (16, 2)
    assert list(lora_layers(network)) == [
        "extractor.body.blocks.0.attn.qkv",
        "extractor.body.blocks.1.attn.qkv",
        "extractor.body.blocks.1.mlp.fc2",
    ]


def test_bytes_of_a_vit_b16_by_hand():
    def floats(targets, rank, **options):
        with torch.device("meta"):
            body = timm.create_model("vit_base_patch16_224", num_classes=0)
            insert_lora(body, rank, 4.0, targets, **options)
        return sum(p.numel() for p in body.parameters() if p.requires_grad)

    # qkv 768 -> 2304, proj 768 -> 768, twelve blocks; specs: all four layers have 147,456 floats a rank.
    assert floats(["qkv", "proj"], 4) == 12 * 4 * (768 + 2304 + 768 + 768) == 221_184
    assert floats(["qkv", "proj"], 4, train_a=False) == 12 * 4 * (2304 + 768) == 147_456
    assert floats(["q", "v"], 4) == 12 * 4 * 2 * (768 + 768) == 147_456
    assert floats(["*"], 1) == 147_456
    # A client of CIFAR-100 sends the head's 76,900 floats too: 1.19 MB, where the full model has 343.50 MB.
    assert 4 * (221_184 + 769 * 100) == 1_192_336


def test_text_models_have_the_floats_of_the_specification():
    """T5-small 135,168 and BERT-base 165,888 floats a rank, over all linear layers (specs/methods-b, 7.7)."""
    layers = {"num_layers": 6, "num_heads": 8, "d_model": 512, "d_kv": 64, "d_ff": 2048}
    for rank in (1, 3):
        with torch.device("meta"):
            t5, bert = T5Model(T5Config(**layers)), BertModel(BertConfig(), add_pooling_layer=False)
            insert_lora(t5, rank, 1.0, ["q", "k", "v", "o", "wi", "wo"])
            insert_lora(bert, rank, 1.0)
        assert [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (t5, bert)] == [
            135_168 * rank,
            165_888 * rank,
        ]


@pytest.mark.parametrize("target", ["qkw", "attn", "blocks.2.attn.q"])
def test_an_illegal_target_names_the_legal_ones(target):
    with pytest.raises(UsageError, match="fc1, fc2, k, proj, q, qkv, v"):
        insert_lora(SmallViT().build(), 1, 1.0, ["qkv", target])


def test_timm_refuses_an_illegal_target_before_anything_is_trained():
    for model, legal in (("convnext-tiny", "fc1, fc2"), ("vit-tiny", "fc1, fc2, k, proj, q, qkv, v")):
        backbone = Timm(Timm.Params(model=model, weights="none", adapter={"use": "lora", "targets": ["out"]}))
        with pytest.raises(UsageError, match=f"'out'; there are {legal}$"):
            backbone.instance_facts()
    assert Timm(Timm.Params(model="convnext-base")).identity()["model"] == "convnext_base.fb_in22k"


def test_a_network_is_adapted_once_and_needs_linear_layers():
    body = SmallViT().build()
    insert_lora(body, 1, 1.0, ["qkv"])
    with pytest.raises(UsageError, match="already"):
        insert_lora(body, 1, 1.0, ["proj"])
    with pytest.raises(UsageError, match="no linear layer that"):
        insert_lora(nn.Conv2d(1, 1, 1), 1, 1.0)
    shared = nn.Linear(4, 4)
    body = nn.Sequential(shared, nn.ReLU(), shared)
    insert_lora(body, 1, 1.0)
    assert body[0] is body[2]  # a layer that is used twice stays one
    assert isinstance(body[0], LoraLinear)


def test_frozen_batchnorm_keeps_its_statistics_out_of_the_vector():
    extractor = ConvNet().build()
    norm = extractor.body[1]
    norm.running_mean.fill_(3.0)
    freeze_batch_norm(extractor)
    model = FlatModel(Network(extractor, 10), torch.device("cpu"))
    model.network.train()
    model.network(torch.randn(4, 1, 8, 8))
    assert norm.running_mean.tolist() == [3.0] * 4
    assert not norm.training
    assert not model.batch_norms
    assert len(model.counters) == 0
    assert [name for name in names(model) if name.startswith("1.")] == ["1.weight", "1.bias"]


def test_the_default_has_no_part_in_the_identity():
    assert SmallViT().identity() == {}
    adapted = SmallViT(SmallViT.Params(adapter=Lora(use="lora")))
    assert adapted.identity() == {"adapter": {"use": "lora"}}
    assert len(lora_layers(adapted.adapt(adapted.build()))) == 8
