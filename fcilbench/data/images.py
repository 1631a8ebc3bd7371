"""Image files in class folders, decoded to equal uint8 squares when asked for, in parallel."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from fcilbench.api.dataset import Corpus, Labels, Samples
from fcilbench.data.content import stratified_split
from fcilbench.errors import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""What counts as an image, in any case; other files (`README.txt`, `Thumbs.db`) are passed over."""

Pixels = npt.NDArray[np.uint8]
_T = TypeVar("_T")
_AHEAD = 32  # images of a thread that are decoded before they are asked for


@dataclass(frozen=True)
class ImageFiles:
    """Images of one split that are still files (`fcilbench.data.content.LazyInputs`).

    They are numbered by the bytes of the files, so that neither the version of a decoder nor `size` changes a stream.

    Attributes:
        files: Where they are.
        size: Height and width of a decoded image.
        margin: Length of the shorter side before the central crop, in units of `size`; 1 crops only what is not square.
        known: SHA-256 of each file, if known.
    """

    files: Sequence[Path]
    size: int = 224
    margin: float = 1.0
    known: Sequence[bytes] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Images, height, width, channels."""
        return (len(self.files), self.size, self.size, 3)

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8."""
        return np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Labels) -> ImageFiles:
        known = None if self.known is None else [self.known[i] for i in index]
        return replace(self, files=[self.files[i] for i in index], known=known)

    def __iter__(self) -> Iterator[Pixels]:
        """Yields the images uint8 `[size, size, 3]`, decoded by as many threads as there are cores."""
        yield from _parallel(functools.partial(read_image, size=self.size, margin=self.margin), self.files)

    def contents(self) -> Sequence[bytes]:
        """Returns the SHA-256 of each file.

        Raises:
            DataError: If one cannot be read.
        """
        return list(_parallel(_sha256, self.files)) if self.known is None else self.known


def sized(corpus: Corpus, size: int, margin: float = 1.0) -> Corpus:
    """Returns the same images, to be decoded to another size (see `ImageFiles`)."""
    train, test = (
        Samples(replace(each.inputs, size=size, margin=margin), each.labels) for each in (corpus.train, corpus.test)
    )
    return Corpus(train, test, corpus.class_names)


def split_images(images: Samples, count: int) -> tuple[Samples, Samples]:
    """Returns training and test images: `count` of them are the test set, stratified, by the content of the files.

    Raises:
        DataError: If no such split exists, or a file cannot be read.
    """
    content = images.inputs.contents()
    known = Samples(replace(images.inputs, known=content), images.labels)
    train, test = stratified_split(images.labels, content, count)
    return known.take(train), known.take(test)


def class_folders(folder: Path) -> tuple[tuple[str, ...], Samples]:
    """Lists a folder whose subfolders are the classes, in the order of their names.

    Args:
        folder: What holds the class folders; hidden files and folders are passed over.

    Returns:
        Class names and images.

    Raises:
        DataError: If the folder cannot be read, has no class folders, or one of them has no image.
    """
    names = sorted(entry.name for entry in _entries(folder) if entry.is_dir())
    if not names:
        raise DataError(f"{folder} has no class folders")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = sorted(e.path for e in _entries(folder / name) if Path(e.name).suffix.lower() in SUFFIXES)
        if not images:
            raise DataError(f"class folder {folder / name} has no image ({', '.join(sorted(SUFFIXES))})")
        files += map(Path, images)
        labels += [label] * len(images)
    return tuple(names), Samples(ImageFiles(files), np.array(labels, dtype=np.int64))


def class_tree(train: Path, test: Path) -> Corpus:
    """Lists a split that is two folders of the same class folders.

    Raises:
        DataError: Like `class_folders`, or if the two have different classes.
    """
    names, train_images = class_folders(train)
    test_names, test_images = class_folders(test)
    if names != test_names:
        odd = sorted(set(names) ^ set(test_names))
        raise DataError(f"{train} and {test} have different class folders: {', '.join(odd[:5])} is in one only")
    return Corpus(train_images, test_images, names)


def unnested(folder: Path) -> Path:
    """Returns the folder within, if all that a folder holds is one of its own name, as some archives unpack."""
    inner = folder / folder.name
    nested = inner.is_dir() and [entry.name for entry in _entries(folder) if entry.is_dir()] == [folder.name]
    return inner if nested else folder


def read_image(path: Path, size: int, margin: float) -> Pixels:
    """Decodes an image, resizes its shorter side to `size * margin` (bicubic, antialiased) and crops the centre.

    The rounding is that of torchvision's `Resize` and `CenterCrop`. Orientation tags are not applied, as the field
    does not.

    Args:
        path: Any format and mode that Pillow reads.
        size: Height and width of the result.
        margin: See `ImageFiles`.

    Returns:
        uint8 `[size, size, 3]`, RGB.

    Raises:
        DataError: If the file cannot be read or is broken.
    """
    try:
        with Image.open(path) as image:
            rgb = to_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # damaged images raise whatever their decoder trips over
        raise DataError(
            f"broken image {path}: {' '.join(str(error).split()) or type(error).__name__}",
            hint="put the official file in its place, or fetch the data set again",
        ) from error
    short, long = sorted(rgb.size)
    target = round(size * margin)
    scaled = max(target, int(target * long / short))
    shape = (target, scaled) if rgb.width <= rgb.height else (scaled, target)
    if rgb.size != shape:
        rgb = rgb.resize(shape, Image.Resampling.BICUBIC)
    left, top = round((rgb.width - size) / 2), round((rgb.height - size) / 2)
    return np.asarray(rgb.crop((left, top, left + size, top + size)))


def to_rgb(image: Image.Image) -> Image.Image:
    """Returns the first frame as RGB: grey is repeated, CMYK and palettes convert.

    16-bit grey keeps its high byte. Transparent pixels become white.

    Raises:
        ValueError: If the pixels are floats or 32-bit integers whose scale is not known.
    """
    if image.mode.startswith("I;16"):
        grey = np.asarray(image).astype(np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode in ("F", "I"):
        raise ValueError(f"pixels of mode {image.mode!r} have no known scale; save it with 8 or 16 bits per channel")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot read folder {folder}: {error.strerror or error}") from error


def _sha256(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise DataError(f"cannot read image {path}: {error.strerror or error}") from error


def _parallel(function: Callable[[Path], _T], files: Sequence[Path]) -> Iterator[_T]:
    """Yields the results in order; holds few of them at a time, however slow the consumer is."""
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    window = workers * _AHEAD
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        try:
            for start in range(0, len(files), window):
                yield from pool.map(function, files[start : start + window])
        finally:
            pool.shutdown(cancel_futures=True)
