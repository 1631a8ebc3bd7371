"""Real data and weights; a test that needs them is skipped where the data root has none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SMALL_VIT = "vit_tiny_patch8_64.tiny_imagenet.safetensors"


def _under_data_root(relative: str) -> Path:
    root = os.environ.get("FCILBENCH_DATA")
    path = Path(root or "/nonexistent").absolute() / relative
    if not path.exists():
        pytest.skip(f"set FCILBENCH_DATA to a folder that holds {relative}")
    return path


@pytest.fixture
def small_vit() -> Path:
    """The weights of the small pretrained ViT."""
    return _under_data_root(f"weights/{SMALL_VIT}")


@pytest.fixture
def cifar100_root() -> Path:
    """A data root that holds CIFAR-100."""
    return _under_data_root("cifar-100-python").parent
