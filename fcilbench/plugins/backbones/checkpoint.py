"""Loads a file of weights into a model: all of it, or one clear error."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fcilbench.api import PrerequisiteError

_SHOWN = 3  # keys of a kind that an error lists


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


def load_all(
    model: nn.Module,
    state: Mapping[str, torch.Tensor],
    *,
    model_name: str,
    path: Path,
    classifiers: tuple[str, ...] = (),
) -> None:
    """Copies weights into a model whose entries have exactly the same names and shapes.

    Weights of modules in `classifiers`, such as `head` or `fc`, are passed over if the model does not have them. The
    model's name and the path of the weights are for the error.

    Raises:
        PrerequisiteError: If anything is missing, unexpected or of another shape; the model is then unchanged.
    """
    target = model.state_dict()
    heads = tuple(f"{name}." for name in classifiers)
    given = {key: value for key, value in state.items() if key in target or not key.startswith(heads)}
    shapes = [
        f"{key} {list(given[key].shape)} for {list(target[key].shape)}"
        for key in target
        if key in given and given[key].shape != target[key].shape
    ]
    missing = [key for key in target if key not in given]
    if wrong := key_problems(missing, sorted(given.keys() - target.keys()), shapes):
        raise PrerequisiteError(
            f"weights {path} do not fit {model_name}: {wrong}",
            hint="use the model and the args (img_size, patch_size, ...) that the weights were made with",
        )
    model.load_state_dict(given)


def key_problems(missing: Collection[str], unexpected: Collection[str], shapes: Collection[str] = ()) -> str:
    """Returns what is wrong with the keys of a checkpoint in words, the first few of each kind; "" if nothing is."""
    parts = []
    for kind, keys in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes)):
        if keys:
            more = f", ... ({len(keys)} in all)" if len(keys) > _SHOWN else ""
            parts.append(f"{kind}: {', '.join(list(keys)[:_SHOWN])}{more}")
    return "; ".join(parts)


def packaged(package: str, file: str) -> Path:
    """Returns a file of an installed package of weights, without importing the package.

    Raises:
        PrerequisiteError: If the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise PrerequisiteError(
            f"the package {package.replace('_', '-')} is not installed", hint="pip install 'fcilbench[offline]'"
        )
    return Path(spec.origin).parent / file
