"""Every old name of timm gets the configuration of the model that timm builds for it; others get the nearest name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from fcilbench.api.backbone import ImageInput
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.backbones.timm_names import MEANT, nearest_names

OLD = timm.models.get_deprecated_models()
DIGITS = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}


def backbone(model: str, **params: Any) -> Timm:
    return Timm(Timm.Params(model=model, **params))


def timm_builds(old: str) -> tuple[str, Any]:
    """The name of what timm's function for an old name calls, and its pretraining, as timm resolves them."""
    bound = inspect.getclosurevars(timm.models.model_entrypoint(old)).nonlocals
    name, tag = bound["current_fn"].__name__, bound["current_tag"]
    own = timm.models.resolve_pretrained_cfg(name, pretrained_cfg=tag)
    return f"{name}.{tag}" if tag else name, own


def test_every_old_name_has_the_configuration_of_the_model_that_timm_builds() -> None:
    """No weights and no model; the names that timm gets wrong are below."""
    assert len(OLD) > 150
    for old in sorted(OLD.keys() - MEANT.keys()):
        name, own = timm_builds(old)
        assert own.has_weights
        plugin = backbone(old)
        expected = ImageInput(own.input_size[-1], 3, own.mean, own.std)
        assert (plugin.params.model, plugin.image_input()) == (name, expected), old
        assert plugin.identity() == backbone(name).identity()
        file = backbone(old, weights="some.safetensors")
        assert file.image_input() == expected
        assert timm.models.get_pretrained_cfg(file.params.model).classifier == own.classifier


@pytest.mark.parametrize(
    ("old", "name", "size", "mean", "std"),
    [
        ("vit_base_patch16_224_in21k", "vit_base_patch16_224.augreg_in21k", 224, 0.5, 0.5),
        ("vit_small_patch16_224_in21k", "vit_small_patch16_224.augreg_in21k", 224, 0.5, 0.5),
        ("vit_huge_patch14_224_in21k", "vit_huge_patch14_224.orig_in21k", 224, 0.5, 0.5),
        ("vit_base_patch16_224_miil_in21k", "vit_base_patch16_224_miil.in21k", 224, 0.0, 1.0),
        ("vit_base_patch16_224_dino", "vit_base_patch16_224.dino", 224, 0.485, 0.229),
        ("tf_efficientnet_b7_ns", "tf_efficientnet_b7.ns_jft_in1k", 600, 0.485, 0.229),
        ("swin_base_patch4_window12_384_in22k", "swin_base_patch4_window12_384.ms_in22k", 384, 0.485, 0.229),
        ("convnext_base_in22k", "convnext_base.fb_in22k", 224, 0.485, 0.229),
    ],
)
def test_old_names_of_published_code(old: str, name: str, size: int, mean: float, std: float) -> None:
    """The values are those of the models' cards."""
    wanted = backbone(old).image_input()
    assert (wanted.size, wanted.mean[0], wanted.std[0]) == (size, mean, std)
    assert backbone(old).identity()["weights"] == f"hub:{name}"


def test_a_file_under_an_old_name_is_normalised_and_loaded_without_its_head(tmp_path: Path) -> None:
    """Public class-incremental code builds `vit_tiny_patch16_224_in21k`; its file has a head of 21,843 classes."""
    with pytest.warns(UserWarning, match="deprecated"):
        source = timm.create_model("vit_tiny_patch16_224_in21k", **DIGITS)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    plugin = backbone("vit_tiny_patch16_224_in21k", weights=str(tmp_path / "w.safetensors"), args=DIGITS)
    assert plugin.image_input() == ImageInput(8, 3, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    model = plugin.build().eval()
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(model(images), source.eval().forward_head(source.forward_features(images), pre_logits=True))
    present = backbone("vit_tiny_patch16_224.augreg_in21k", weights=str(tmp_path / "w.safetensors"), args=DIGITS)
    assert plugin.identity() == present.identity()


def test_an_image_that_is_not_square() -> None:
    """timm's `sapiens2` read 1,024 rows of 768 pixels."""
    assert backbone("vit_base_patch16_sapiens2").image_input().size == (1024, 768)


@pytest.mark.parametrize("old", sorted(MEANT))
def test_an_old_name_that_timm_takes_for_something_else_is_refused(old: str) -> None:
    """mixer_b16_224_in21k gave weights of ImageNet-1k, ig_resnext101_32x16d another network."""
    if old not in OLD or OLD[old] == MEANT[old]:
        pytest.skip("this version of timm takes it for what it meant")
    meant = MEANT[old]
    advice = f"write {meant}" if timm.models.is_model_pretrained(meant) else "choose another model"
    with pytest.raises(ValidationError, match=rf"timm {timm.__version__} (takes|no longer has) {old}.*: {advice}"):
        backbone(old, weights="none")


AUGREG, ORIGINAL = "vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.orig_in21k"
BASE = [AUGREG, ORIGINAL, "vit_base_patch16_224"]


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        (f"hf_hub:timm/{AUGREG}", [AUGREG]),
        ("hf-hub:timm/resnet18.a1_in1k@main", ["resnet18.a1_in1k"]),
        ("timm/vit_base_patch16_224", ["vit_base_patch16_224"]),
        ("hf_hub:timm/convnext_base_in22k", ["convnext_base.fb_in22k"]),
        ("facebook/deit-tiny-patch16-224", ["deit_tiny_patch16_224"]),
        ("google/vit-base-patch16-224-in21k", BASE),
        ("ViT-B_16", BASE),
        ("ViT-B/16", BASE),
        ("vit_b_16", BASE),
        ("vit_base_patch16", BASE),
        ("ViT-H_14", ["vit_huge_patch14_224.orig_in21k", "vit_huge_patch14_224"]),
        ("ViT-Ti_16", ["vit_tiny_patch16_224.augreg_in21k", "vit_tiny_patch16_224"]),
        ("R50+ViT-B_16", ["vit_base_r50_s16_224.orig_in21k", "vit_base_r50_s16_224"]),
        ("VIT_BASE_PATCH16_224", ["vit_base_patch16_224"]),
        ("vit_base_patch16_224_augreg_in21k", [AUGREG]),
        ("ResNet50", ["resnet50"]),
    ],
)
def test_the_nearest_legal_names(wrong: str, nearest: list[str]) -> None:
    assert nearest_names(wrong) == nearest
    with pytest.raises(ValidationError, match=f"nearest: {', '.join(nearest)}"):
        backbone(wrong)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (f"hf_hub:timm/{AUGREG}", f"'hf_hub:timm/{AUGREG}' is a repository or a folder, not a name of timm; nearest"),
        ("hf_hub:paige-ai/Virchow", "not a name of timm; for other weights set weights to their .safetensors file"),
        ("ViT-B/16", rf"timm {timm.__version__} has no model 'ViT-B/16'"),
        ("vit_base_patch16_clip_224.opnai", r"has no pretrained tag 'opnai'; it has: openai,"),
        ("vit_base_patch16_224_in21k.x", f"is timm's old name of {AUGREG} and has no tags: write {AUGREG}"),
    ],
)
def test_what_the_error_says(wrong: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        backbone(wrong)
