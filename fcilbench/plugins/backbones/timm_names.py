"""Names of timm's models: short ones, those of older versions, and the nearest legal one to what somebody wrote."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TypeGuard

import timm

SHORT = {
    **{f"vit-{size}": f"vit_{size}_patch16_224.augreg_in21k" for size in ("tiny", "small", "base", "large")},
    **{f"convnext-{size}": f"convnext_{size}.fb_in22k" for size in ("tiny", "small", "base")},
}
"""Short names of `model`: pretrained on ImageNet-21k (ViT, patches of 16 pixels) or 22k (ConvNeXt), at 224 pixels."""
MEANT = {
    **{f"ig_resnext101_32x{width}d": f"resnext101_32x{width}d.fb_wsl_ig1b_ft_in1k" for width in (16, 32, 48)},
    **{f"mixer_{size}16_224_in21k": f"mixer_{size}16_224.goog_in21k" for size in ("b", "l")},
    **{f"resmlp_{depth}_224_dino": f"resmlp_{depth}_224.fb_dino" for depth in (12, 24)},
    **{f"vit_base_patch{side}_224_sam": f"vit_base_patch{side}_224.sam_in1k" for side in (16, 32)},
}
"""Old names that timm 1.0.31 maps to other weights, another network or a tag that it lacks, with what they meant."""
_SIZES = {"ti": "tiny", "t": "tiny", "s": "small", "b": "base", "l": "large", "h": "huge"}
_VIT = re.compile(
    r"(?:r(?P<stem>\d+)_)?vit_?(?P<size>tiny|small|base|large|huge|ti|t|s|b|l|h)_?(?:patch|p)?_?(?P<patch>\d\d?)"
    r"(?:_(?P<pixels>\d{3}))?(?:_(?:in)?\d+k)?"
)
"""How others write a vision transformer, after `_plain`: `ViT-B_16`, `R50+ViT-B_16`, `vit_b_16`, `vit-base-patch16`."""
_PLACE = re.compile(r"(hf[-_]hub|local-dir):|(?!vit-[a-z]+/\d+$)[\w.-]*/", re.IGNORECASE)
"""What names a repository or a folder; `ViT-B/16` is CLIP's name of a network."""


def current_name(model: str) -> str:
    """Returns timm's present name of a model, with the tag that an old or a short name stands for.

    timm builds `vit_base_patch16_224_in21k` as `vit_base_patch16_224.augreg_in21k`, but knows no pretraining
    (normalisation, weights, classifier) under the old name.

    Raises:
        ValueError: If timm has no such model or tag, or takes an old name for what it did not mean.
    """
    model = SHORT.get(model, model)
    architecture, _, tag = model.partition(".")
    if not timm.is_model(architecture):
        raise ValueError(_unknown(model))
    mapping = timm.models.get_deprecated_models()
    if architecture in mapping:
        name = _mapped(architecture, mapping[architecture])
        if tag and model != name:
            raise ValueError(f"{architecture} is timm's old name of {name} and has no tags: write {name}")
        return name
    if tag and not timm.models.is_model_pretrained(model):
        tags = [name.partition(".")[2] for name in timm.list_pretrained(architecture)]
        tags.sort(key=lambda each: -difflib.SequenceMatcher(None, tag, each).ratio())
        raise ValueError(f"{architecture} has no pretrained tag {tag!r}; it has: {', '.join(tags) or 'none'}")
    return model


def nearest_names(model: str) -> list[str]:
    """Returns at most three names that timm has and that are nearest to one that it has not."""
    wanted = _plain(model)
    present = {_plain(name): name for name in [*timm.list_models(), *timm.list_models(include_tags=True), *SHORT]}
    old = {
        _plain(name): target
        for name, mapped in timm.models.get_deprecated_models().items()
        if _legal(target := MEANT.get(name, mapped))
    }
    if wanted in present:
        return [present[wanted]]
    if match := _VIT.fullmatch(wanted):
        wanted = _vision_transformer(match)
        if timm.is_model(wanted):
            return [*(name for name in timm.list_pretrained(wanted) if name.endswith("_in21k")), wanted][:3]
    if wanted in old:
        return [old[wanted]]
    every = old | present
    close = difflib.get_close_matches(wanted, every, n=3, cutoff=0.6)
    return _unique(every[each] for each in close)


def _mapped(old: str, target: str | None) -> str:
    """Returns what timm maps an old name to; raises ValueError if that is nothing, or not what the name meant."""
    meant = MEANT.get(old, target)
    if target == meant and _legal(target):
        return target
    instead = f"write {meant}" if _legal(meant) else "choose another model"
    if not _legal(target):
        raise ValueError(f"timm {timm.__version__} no longer has {old}: {instead}")
    raise ValueError(f"timm {timm.__version__} takes {old} for {target}, which is not what it meant: {instead}")


def _legal(name: str | None) -> TypeGuard[str]:
    if not name or not timm.is_model(name):
        return False
    return "." not in name or bool(timm.models.is_model_pretrained(name))


def _unknown(model: str) -> str:
    names = nearest_names(model)
    near = f"; nearest: {', '.join(names)}" if names else ""
    if _PLACE.match(model):
        other = "for other weights set weights to their .safetensors file"
        return f"{model!r} is a repository or a folder, not a name of timm{near}; {other}"
    return f"timm {timm.__version__} has no model {model!r}{near}"


def _plain(name: str) -> str:
    """Returns a name without its place and revision, in small letters, words joined by underscores."""
    name = re.sub(r"^(hf[-_]hub|local-dir):", "", name.lower()).partition("@")[0]
    if _PLACE.match(name):
        name = name.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^a-z0-9]+", "_", name)


def _vision_transformer(match: re.Match[str]) -> str:
    size = _SIZES.get(match["size"], match["size"])
    stem = f"r{match['stem']}_s" if match["stem"] else "patch"
    return f"vit_{size}_{stem}{match['patch']}_{match['pixels'] or 224}"


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
