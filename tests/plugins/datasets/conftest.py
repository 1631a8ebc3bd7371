from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FCILBENCH_CACHE", str(folder))
    return folder


def _photo(path: Path, grey: int, size: tuple[int, int] = (48, 32), mode: str = "RGB") -> Path:
    """Writes an image of one grey, whose format follows from the name and which every mode can hold."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, grey).convert(mode).save(path)
    return path


@pytest.fixture
def photo() -> Callable[..., Path]:
    """Returns `photo(path, grey, (width, height), mode)`."""
    return _photo


@pytest.fixture
def greys() -> Callable[..., list[tuple[int, int]]]:
    """Returns `greys(samples)`: sorted pairs of label and grey of each image, rounded to tens (JPEG is not exact)."""

    def read(samples) -> list[tuple[int, int]]:
        pairs = zip(samples.labels, samples.inputs, strict=True)
        return sorted((int(label), round(float(image.mean()) / 10) * 10) for label, image in pairs)

    return read
