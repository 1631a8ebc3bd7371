from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from fcilbench.api.backbone import ImageInput, Transformer
from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.plugins.backbones.timm import Timm

DIGITS = {"img_size": 8, "patch_size": 2, "embed_dim": 64, "depth": 4, "num_heads": 4}
VIT = {"img_size": 64, "patch_size": 8}


def backbone(**params: Any) -> Timm:
    return Timm(Timm.Params(**{"model": "vit_tiny_patch16_224", "weights": "none", **params}))


def test_small_vit_from_scratch() -> None:
    plugin = backbone(args=DIGITS)
    model = plugin.build()
    assert plugin.image_input() == ImageInput(8, 3, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert model.feature_dim == 64
    assert model(torch.zeros(5, 3, 8, 8)).shape == (5, 64)
    assert model.training
    # 4 blocks x 12 D^2 + 13 D, patches 3*2*2*D + D, 17 positions, class token, last norm 2 D; D = 64.
    assert sum(p.numel() for p in model.parameters()) == 4 * (12 * 64**2 + 13 * 64) + 13 * 64 + 17 * 64 + 64 + 2 * 64
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_initialisation_follows_the_global_generator() -> None:
    def first() -> torch.Tensor:
        torch.manual_seed(3)
        return backbone(args=DIGITS).build().state_dict()["body.blocks.0.attn.qkv.weight"]

    once, again = first(), first()
    other = backbone(args=DIGITS).build().state_dict()["body.blocks.0.attn.qkv.weight"]
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_single_channel_averages_the_normalisation() -> None:
    plugin = backbone(model="resnet10t.c3_in1k", args={"in_chans": 1}, input_size=32)
    wanted = plugin.image_input()
    assert (wanted.size, wanted.channels) == (32, 1)
    assert wanted.mean == pytest.approx(((0.485 + 0.456 + 0.406) / 3,))
    assert wanted.std == pytest.approx(((0.229 + 0.224 + 0.225) / 3,))
    assert plugin.build()(torch.zeros(2, 1, 32, 32)).shape == (2, 512)


def test_input_defaults_come_from_the_pretraining_and_can_be_overridden() -> None:
    assert backbone(model="resnet18.a1_in1k").image_input() == ImageInput(
        224, 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    )
    given = backbone(mean=(0.1, 0.2, 0.3), std=(1, 1, 1), args=VIT).image_input()
    assert given == ImageInput(64, 3, (0.1, 0.2, 0.3), (1.0, 1.0, 1.0))


def test_feature_dim_is_that_of_the_output() -> None:
    # MobileNetV3 has a hidden layer in its head: num_features 576, output 1024.
    model = backbone(model="mobilenetv3_small_100", input_size=64).build()
    assert model.body.num_features == 576
    assert model.feature_dim == 1024
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 1024)


def test_measuring_the_output_leaves_batch_norm_alone() -> None:
    model = backbone(model="resnet10t", input_size=32).build()
    counts = [value for key, value in model.state_dict().items() if key.endswith("num_batches_tracked")]
    assert len(counts) > 5
    assert not any(counts)


def test_weights_file_with_head_in_half_precision(tmp_path: Path) -> None:
    source = timm.create_model("vit_tiny_patch16_224", num_classes=7, **DIGITS)
    path = tmp_path / "w.safetensors"
    save_file({key: value.half() for key, value in source.state_dict().items()}, path)
    model = backbone(args=DIGITS, weights=str(path)).build()
    state = model.body.state_dict()
    assert len(state) == len(source.state_dict()) - 2
    assert all(torch.equal(value, source.state_dict()[key].half().float()) for key, value in state.items())


def test_file_for_another_image_size(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224", num_classes=0, **DIGITS).state_dict(), path)
    reason = r"do not fit vit_tiny_patch16_224: of another shape: pos_embed \[1, 17, 64\] for \[1, 65, 64\]"
    with pytest.raises(PrerequisiteError, match=reason):
        backbone(args={**DIGITS, "img_size": 16}, weights=str(path)).build()


def test_identity_is_the_content_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.safetensors").write_bytes(b"abc")
    (tmp_path / "b.safetensors").write_bytes(b"abc")
    by_name = backbone(weights="a.safetensors", args=VIT)
    by_path = backbone(weights=str(tmp_path / "b.safetensors"), args=VIT)
    assert by_name.files() == [tmp_path / "weights" / "a.safetensors"]
    assert by_name.identity() == by_path.identity()
    assert by_name.identity()["weights"] == f"sha256:{hashlib.sha256(b'abc').hexdigest()}"
    (tmp_path / "b.safetensors").write_bytes(b"abcd")
    assert by_name.identity() != by_path.identity()
    with pytest.raises(PrerequisiteError, match=r"weights file 'c\.safetensors' not found"):
        backbone(weights="c.safetensors").identity()


def test_identity_fills_in_what_timm_decides() -> None:
    assert backbone(weights="none").files() == []
    spelled = backbone(input_size=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)).identity()
    assert backbone().identity() == spelled
    assert spelled["weights"] == "none"
    hub = backbone(weights="hub").identity()
    assert hub["weights"] == "hub:vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert hub["model"] == "vit_tiny_patch16_224"


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"model": "vit_tinny_patch16_224"}, r"has no model 'vit_tinny_patch16_224'; nearest: vit_tiny_patch16_224"),
        ({"model": "vit_tiny_patch16_224.augreg"}, r"no pretrained tag 'augreg'; it has: augreg_in21k"),
        ({"model": "zzzz"}, "has no model 'zzzz'"),
        ({"weights": "model.pth"}, "weights are 'hub', 'none' or a .safetensors file, not 'model.pth'"),
        ({"weights": "hub", "model": "vgg11x"}, "has no model 'vgg11x'"),
        ({"weights": "hub", "model": "resnetv2_50d_frn"}, "resnetv2_50d_frn has no weights on the hub"),
        ({"args": {"num_classes": 10}}, "num_classes cannot be set in args"),
        ({"args": {"pretrained": True, "checkpoint_path": "x"}}, "checkpoint_path, pretrained cannot be set"),
        ({"args": {"img_size": [64, 32, 3]}}, r"args.img_size must be a positive integer"),
        ({"args": {"in_chans": 0}}, r"args.in_chans must be a positive integer"),
        ({"args": VIT, "input_size": 32}, "input_size 32 differs from args.img_size 64"),
        ({"mean": (0.5,)}, "mean has 1 values for 3 input channels"),
        ({"std": (0.5, 0.0, 0.5)}, "std must be positive"),
        ({"args": {"qkv_bias": "no"}}, "args.qkv_bias is the text 'no', which Python takes for true"),
        ({"modle": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_bad_parameters(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        backbone(**params)


def test_shape_of_a_vision_transformer() -> None:
    assert backbone(args=DIGITS).build().transformer == Transformer(tokens=17, width=64, depth=4, heads=4)
    registers = backbone(model="vit_small_patch14_reg4_dinov2", args={"img_size": 28, "depth": 2}).build()
    assert registers.transformer == Transformer(tokens=4 + 1 + 4, width=384, depth=2, heads=6)
    assert backbone(model="resnet10t", input_size=32).build().transformer is None


@pytest.mark.parametrize(
    ("params", "reason", "hint"),
    [
        ({"args": {"img_sze": 64}}, "vit_tiny_patch16_224 does not take args .*img_sze", ""),
        ({"args": {**DIGITS, "num_heads": 5}}, "timm cannot build vit_tiny_patch16_224 with args", ""),
        (
            {"input_size": 32},
            r"does not take inputs of \[1, 3, 32, 32\]",
            "set args.img_size for models of a fixed size",
        ),
        ({"args": {**DIGITS, "global_pool": ""}}, "does not give one vector an image", "check args.global_pool"),
        # Public report 8: timm ignored the outer 8 rows and columns of 64 pixels.
        (
            {"model": "vit_small_patch14_reg4_dinov2", "args": {"img_size": 64, "depth": 1}},
            "has patches of 14 pixels, which do not fill an image of 64",
            "set args.img_size to 56 or 70",
        ),
    ],
)
def test_what_timm_or_the_model_does_not_take(params: dict[str, Any], reason: str, hint: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        backbone(**params).build()
    assert (caught.value.hint or "").startswith(hint)


def test_hub_without_network_or_cache(tmp_path: Path) -> None:
    """A process of its own: the hub's client reads its environment when it is imported."""
    code = (
        "from fcilbench.errors import PrerequisiteError\n"
        "from fcilbench.plugins.backbones.timm import Timm\n"
        "try:\n    Timm(Timm.Params(model='vit_tiny_patch16_224')).build()\n"
        "except PrerequisiteError as error:\n    print(error.message, error.hint, sep='\\n')\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    message, hint = done.stdout.strip().splitlines()
    assert message.startswith("cannot get the pretrained weights of timm model vit_tiny_patch16_224: ")
    assert "HF_HUB_OFFLINE=1" in hint
    assert ".safetensors file" in hint


def test_pretrained_small_vit(small_vit: Path) -> None:
    plugin = backbone(weights=small_vit.name, args=VIT)
    model = plugin.build().eval()
    assert sum(p.numel() for p in model.parameters()) == 5_388_480  # weights/README of the file
    assert plugin.image_input() == ImageInput(64)
    plain = timm.create_model("vit_tiny_patch16_224", num_classes=0, **VIT).eval()
    plain.load_state_dict({key: value.float() for key, value in load_file(small_vit).items()})
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(images), plain(images))


def test_a_network_of_convolutions_asks_for_channels_last_and_answers_the_same() -> None:
    assert not Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none")).build().channels_last
    extractor = Timm(Timm.Params(model="resnet10t", weights="none", input_size=32)).build().double().eval()
    assert extractor.channels_last
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    found = extractor(images.contiguous(memory_format=torch.channels_last))
    assert torch.allclose(found, extractor(images), atol=1e-10)
