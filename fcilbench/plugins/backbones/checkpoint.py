"""Loads a file of weights into a model: all of it, or one clear error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fcilbench.errors import PrerequisiteError

SHOWN = 3
"""How many keys of a kind an error lists."""


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads a safetensors file on the CPU; tensors of any float type become fp32.

    Raises:
        PrerequisiteError: If it is not a complete safetensors file.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise PrerequisiteError(f"{path} is not a complete safetensors file: {error}") from error
    return {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}


def without_classifier(
    state: Mapping[str, torch.Tensor], model: nn.Module, classifiers: Iterable[str]
) -> dict[str, torch.Tensor]:
    """Drops the weights of a classification head that the model does not have.

    Args:
        state: What a file holds.
        model: The headless model.
        classifiers: Names of the head's modules, such as `head` or `fc`.

    Returns:
        The other entries, in the same order.
    """
    have = set(model.state_dict())
    heads = tuple(f"{name}." for name in classifiers)
    return {key: value for key, value in state.items() if key in have or not key.startswith(heads)}


def load_all(model: nn.Module, state: Mapping[str, torch.Tensor], *, model_name: str, path: Path) -> None:
    """Copies weights into a model whose entries have exactly the same names and shapes.

    Args:
        model: Takes the weights, in place.
        state: One tensor for each entry of the model's state dict.
        model_name: For the error.
        path: Where `state` comes from, for the error.

    Raises:
        PrerequisiteError: If anything is missing, unexpected or of another shape; the model is then unchanged.
    """
    target = model.state_dict()
    shapes = [
        f"{key} {list(state[key].shape)} for {list(target[key].shape)}"
        for key in target
        if key in state and state[key].shape != target[key].shape
    ]
    missing = [key for key in target if key not in state]
    if wrong := key_problems(missing, [key for key in sorted(state) if key not in target], shapes):
        raise PrerequisiteError(
            f"weights {path} do not fit {model_name}: {wrong}",
            hint="use the model and the args (img_size, patch_size, ...) that the weights were made with",
        )
    model.load_state_dict(dict(state))


def key_problems(missing: Collection[str], unexpected: Collection[str], shapes: Collection[str]) -> str:
    """Returns what is wrong with the keys of a checkpoint in words, the first few of each kind; "" if nothing is."""
    kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
    parts = []
    for kind, keys in kinds:
        more = f", ... ({len(keys)} in all)" if len(keys) > SHOWN else ""
        parts += [f"{kind}: {', '.join(list(keys)[:SHOWN])}{more}"] if keys else []
    return "; ".join(parts)
