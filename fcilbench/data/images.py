"""Data sets of image files: listed at once, decoded to equal uint8 squares in parallel when they are asked for."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from fcilbench.api.dataset import Augmentation, Corpus, Dataset, DatasetParams, Labels, Samples
from fcilbench.data.content import split_samples
from fcilbench.data.root import ARCHIVES, describe_layouts, file_digest, find_layout
from fcilbench.errors import DataError
from fcilbench.spec import params as _params

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""What counts as an image, in any case; other files (`README.txt`, `Thumbs.db`) are passed over."""
CENTRAL = 256 / 224
"""Share by which the shorter side exceeds the central crop (He et al. 2016, and the field since)."""

Pixels = npt.NDArray[np.uint8]
_T = TypeVar("_T")
_AHEAD = 32  # images of a thread that are decoded before they are asked for


@dataclass
class ImageFiles:
    """Images of one split that are still files: `Samples.inputs` until they are decoded, one by one, by iteration.

    Attributes:
        files: Where they are.
        size: Height and width of a decoded image.
        margin: Length of the shorter side before the central crop, in units of `size`; 1 crops only what is not square.
        known: SHA-256 of each file, once it has been computed.
    """

    files: Sequence[Path]
    size: int = 224
    margin: float = 1.0
    known: Sequence[bytes] | None = None
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """Images, height, width, channels."""
        return (len(self.files), self.size, self.size, 3)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Labels) -> ImageFiles:
        known = None if self.known is None else [self.known[i] for i in index]
        return replace(self, files=[self.files[i] for i in index], known=known)

    def __iter__(self) -> Iterator[Pixels]:
        yield from _parallel(functools.partial(read_image, size=self.size, margin=self.margin), self.files)

    @property
    def digests(self) -> Sequence[bytes]:
        """SHA-256 of each file: it numbers the image, so that neither a decoder's version nor `size` changes a stream.

        Raises:
            DataError: If one cannot be read.
        """
        if self.known is None:
            self.known = [bytes.fromhex(digest) for digest in _parallel(file_digest, self.files)]
        return self.known


def decoded(samples: Samples) -> Samples:
    """Returns samples whose inputs are all in memory."""
    inputs = samples.inputs
    if isinstance(inputs, ImageFiles):
        inputs = np.fromiter(inputs, dtype=np.dtype((np.uint8, inputs.shape[1:])), count=len(inputs))
    return Samples(inputs, samples.labels)


def sized(corpus: Corpus, size: int, margin: float = 1.0) -> Corpus:
    """Returns the same images, to be decoded to another size (see `ImageFiles`)."""
    train, test = (
        Samples(replace(each.inputs, size=size, margin=margin), each.labels) for each in (corpus.train, corpus.test)
    )
    return Corpus(train, test, corpus.class_names)


class ImageDataset(Dataset):
    """A data set of image files, in its official layout or as `<name>/{train,test}/<class>/*`.

    The augmentation is CIFAR's at scale: a random crop after zero padding of an eighth (4 of 32) and a horizontal flip.

    Attributes:
        name: Folder of the tree under the data root; the name of the plugin.
        margin: Length of an image's shorter side before the central crop, in units of `size`.
    """

    cached = True
    name: ClassVar[str]
    margin: float = CENTRAL

    class Params(DatasetParams):
        """Size of the decoded images."""

        size: int = _params.Field(224, ge=8, description="height and width that images are decoded to, in pixels")

    def __init__(self, params: _params.Params | None = None) -> None:
        super().__init__(params)
        self.augmentation = Augmentation(crop_padding=self.params.size // 8, flip=True)

    def official(self, paths: tuple[Path, ...]) -> Corpus:
        """Lists the images of the official layout at `paths`; override it if that is not class folders without a split.

        Raises:
            DataError: If something of it is missing or damaged.
        """
        names, images = class_folders(paths[0])
        total = self.train_samples + self.test_samples
        if len(images) != total:
            raise DataError(f"{len(images)} images, expected {total}")
        return Corpus(*split_samples(images, self.test_samples), names)

    def load(self, root: Path) -> Corpus:
        """Lists the image files of the first layout that is there.

        Raises:
            DataError: If none is, or what is there is incomplete; the message says where to put what.
        """
        paths = find_layout(self.layouts, root)
        if paths is None:
            raise DataError(f"{self.name}: not found: no {describe_layouts(self.layouts, root)}", hint=self._hint(root))
        tree = (root / self.name / "train", root / self.name / "test")
        try:
            places = tuple(map(unnested, paths))
            found = class_tree(*places) if paths == tree else self.official(places)
        except DataError as error:
            raise DataError(f"{self.name}: {error.message}", hint=error.hint or self._hint(root)) from error
        return sized(found, self.params.size, self.margin)

    def _hint(self, root: Path) -> str:
        files = ", ".join(f"{archive.file} ({archive.checksum})" for archive in self.archives)
        fetch = f"run `fcilbench data fetch {self.name}`"
        by_hand = f"put {files} into {root / ARCHIVES} and {fetch}, or unpack them by hand"
        return f"{self.by_hand or fetch + '; or'} {by_hand}; another data root is set by --data or FCILBENCH_DATA"


def class_folders(folder: Path) -> tuple[tuple[str, ...], Samples]:
    """Lists a folder whose subfolders are the classes, in the order of their names; passes over hidden files.

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


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot read folder {folder}: {error.strerror or error}") from error


def read_image(path: Path, size: int, margin: float) -> Pixels:
    """Decodes an image, resizes its shorter side to `size * margin` (bicubic, antialiased) and crops the centre.

    The rounding is that of torchvision's `Resize` and `CenterCrop`. Orientation tags are not applied, as the field
    does not.

    Returns:
        uint8 `[size, size, 3]`, RGB.

    Raises:
        DataError: If the file cannot be read or is broken.
    """
    try:
        with Image.open(path) as image:
            rgb = _to_rgb(image)
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


def _to_rgb(image: Image.Image) -> Image.Image:
    """Returns the first frame as RGB: 16-bit grey keeps its high byte, and transparent pixels become white."""
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
