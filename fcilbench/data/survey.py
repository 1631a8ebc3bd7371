"""What a data set is, in numbers: classes, sizes of images, lengths of texts, doubles, names that look alike."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fcilbench.api.dataset import Corpus, Dataset, Samples
from fcilbench.data.alike import alike
from fcilbench.data.doubles import doubles, empty_texts
from fcilbench.data.images import Size, parallel, read_image, sides
from fcilbench.data.open import kept, load_numbered
from fcilbench.errors import DataError

Progress = Callable[[int, int], None]
"""Called with the number of images read and of all images."""

_MOST = 20
"""Entries of a list in a survey: sizes, broken files."""
_ORIENTATION = 0x0112
_ON_ITS_SIDE = range(5, 9)
"""Orientation tags that swap width and height."""
_REPORTS = 100


def survey(dataset: Dataset, root: Path, progress: Progress | None = None) -> tuple[dict[str, Any], Corpus]:
    """Reads a whole data set, without a cache, and describes it.

    Returns:
        A JSON object: `reading`, `digest`, `train`, `test`, `classes` (each with its counts), `images` or `texts`,
        `doubles`, `alike`, `remarks`; and the samples, of which images are not decoded.

    Raises:
        DataError: If it cannot be loaded. Broken images are listed instead.
    """
    corpus, digest = load_numbered(dataset, root)
    corpus = kept(dataset, corpus)
    counts = [np.bincount(each.labels, minlength=len(corpus.class_names)) for each in (corpus.train, corpus.test)]
    pairs = zip(corpus.class_names, *(each.tolist() for each in counts), strict=True)
    found: dict[str, Any] = {
        "modality": dataset.modality,
        "reading": getattr(dataset, "reading", ""),
        "digest": digest,
        "train": len(corpus.train),
        "test": len(corpus.test),
        "classes": [{"name": name, "train": train, "test": test} for name, train, test in pairs],
        "doubles": vars(doubles(corpus)),
        "alike": alike(corpus.class_names),
        "remarks": list(corpus.remarks),
    }
    splits = (corpus.train, corpus.test)
    if dataset.modality == "text":
        return {**found, "texts": _texts(splits)}, corpus
    if dataset.modality == "array":
        return {**found, "arrays": {"shape": list(dataset.shape), "type": str(corpus.train.inputs.dtype)}}, corpus
    return {**found, "images": _images(splits, progress)}, corpus


def _texts(splits: Sequence[Samples]) -> dict[str, Any]:
    words = [str(text) for samples in splits for text in samples.inputs]
    return {
        "characters": spread([len(text) for text in words]),
        "words": spread([len(text.split()) for text in words]),
        "empty": sum(map(empty_texts, splits)),
    }


def spread(numbers: Sequence[int]) -> dict[str, int]:
    """Returns the least, the median, the 95th percentile and the largest of some numbers."""
    points = np.quantile(numbers, (0, 0.5, 0.95, 1), method="higher") if len(numbers) else [0, 0, 0, 0]
    return dict(zip(("least", "median", "p95", "largest"), map(int, points), strict=True))


class _Facts(NamedTuple):
    size: tuple[int, int] = (0, 0)
    mode: str = ""
    form: str = ""
    turned: bool = False
    enlarged: bool = False
    frames: int = 1
    problem: str = ""


def _images(splits: Sequence[Samples], progress: Progress | None) -> dict[str, Any]:
    """Returns sizes (width, height), modes and formats of images, and the broken ones."""
    if isinstance(splits[0].inputs, np.ndarray):
        rows = [each.inputs for each in splits]
        sizes = Counter((each.shape[2], each.shape[1]) for each in rows for _ in range(len(each)))
        modes = Counter({1: "L", 3: "RGB"}.get(each.shape[3], str(each.shape[3])) for each in rows for _ in each)
        return {"count": sizes.total(), **_sizes(sizes), "modes": dict(modes), "formats": {}, "turned": 0, "broken": []}
    files = [path for each in splits for path in each.inputs.files]
    inputs, facts = splits[0].inputs, []
    look = functools.partial(_look, size=inputs.size, margin=inputs.margin, own=inputs.own)
    for done, each in enumerate(parallel(look, files), start=1):
        facts.append(each)
        if progress is not None and (done % max(1, len(files) // _REPORTS) == 0 or done == len(files)):
            progress(done, len(files))
    sound = [each for each in facts if not each.problem]
    pairs = zip(map(str, files), facts, strict=True)
    broken = [{"file": path, "problem": each.problem} for path, each in pairs if each.problem]
    sizes = Counter(each.size for each in sound)
    return {
        "count": len(files),
        **_sizes(sizes),
        "modes": dict(Counter(each.mode for each in sound)),
        "formats": dict(Counter(each.form for each in sound)),
        "turned": sum(each.turned for each in sound),
        "frames": sum(each.frames > 1 for each in sound),
        "decoded": inputs.size,
        "enlarged": sum(each.enlarged for each in sound),
        "broken": broken[:_MOST],
        "broken_count": len(broken),
    }


def _sizes(sizes: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    most = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "sizes": [{"width": width, "height": height, "count": count} for (width, height), count in most[:_MOST]],
        "different_sizes": len(sizes),
        "sides": spread([side for size, count in sizes.items() for side in size for _ in range(count)]),
    }


def _look(path: Path, size: Size, margin: float, own: bool) -> _Facts:
    """Returns the facts of an image, which is decoded as a run would decode it."""
    try:
        read_image(path, size, margin, own)
        with Image.open(path) as image:
            tag = image.getexif().get(_ORIENTATION, 1)
            turned, frames = own and tag in range(2, 9), getattr(image, "n_frames", 1)
            width, height = reversed(image.size) if own and tag in _ON_ITS_SIDE else image.size
            enlarged = height < sides(size)[0] or width < sides(size)[1]
            return _Facts(image.size, image.mode, image.format or "", turned, enlarged, frames)
    except DataError as error:
        return _Facts(problem=error.message.removeprefix(f"broken image {path}: "))
