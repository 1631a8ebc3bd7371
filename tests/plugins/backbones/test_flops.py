"""Operations of a forward pass, told without weights, against known numbers and sums by hand."""

import pytest

from fcilbench.api.backbone import ImageInput
from fcilbench.plugins.backbones.efficientnet_lite0 import EfficientNetLite0
from fcilbench.plugins.backbones.hf import HfEncoder
from fcilbench.plugins.backbones.minilm_l6 import MiniLmL6
from fcilbench.plugins.backbones.timm import Timm, image_flops


def test_vit_base_has_the_operations_of_its_paper():
    """17.6 G multiply-adds at 224 pixels, attention's products included (the ViT papers say 17.5 to 17.6)."""
    found = Timm(Timm.Params(model="vit_base_patch16_224", weights="none")).forward_flops()
    assert found == pytest.approx(2 * 17.56e9, rel=0.01)


def test_weights_are_neither_needed_nor_read():
    with_file = Timm.Params(model="vit_tiny_patch16_224", weights="not-here.safetensors", args={"img_size": 32})
    without = Timm.Params(model="vit_tiny_patch16_224", weights="none", args={"img_size": 32})
    assert Timm(with_file).forward_flops() == Timm(without).forward_flops() > 0


def test_efficientnet_lite0_has_its_published_operations():
    """407 M multiply-adds at 224 pixels, its classifier of 1.3 M included (Liu 2020)."""
    found = EfficientNetLite0(EfficientNetLite0.Params(input_size=224)).forward_flops()
    assert found == pytest.approx(2 * (407e6 - 1.3e6), rel=0.06)


def test_minilm_by_hand():
    """32 tokens, 384 wide, 1,536 inside: 4 x 384^2 + 2 x 384 x 1,536 = 1,769,472 weights a layer."""
    found = MiniLmL6(MiniLmL6.Params(max_length=32)).forward_flops()
    assert found == 6 * (2 * 32 * 1_769_472 + 4 * 32 * 32 * 384) == 688_914_432


def test_what_cannot_be_built_or_does_not_tell_gives_no_estimate():
    def broken():
        raise ValueError("no such model")

    assert image_flops(broken, ImageInput(8)) is None
    assert HfEncoder(HfEncoder.Params(model="some/encoder")).forward_flops() is None
