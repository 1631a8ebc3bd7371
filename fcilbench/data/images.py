"""Data sets of image files, which are listed first and decoded to uint8 of one size in parallel later."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fcilbench.api.dataset import Augmentation, Corpus, Dataset, DatasetParams, Labels, Samples
from fcilbench.data.content import split_samples
from fcilbench.data.root import ARCHIVES, describe_layouts, file_digest, find_layout
from fcilbench.errors import DataError
from fcilbench.spec import params as _params

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Files with another suffix (`README.txt`, `Thumbs.db`) are skipped."""
JUNK = frozenset({"__macosx", "@eadir", "lost+found", "$recycle.bin", "thumbs.db", "desktop.ini"})
"""Files and folders that systems leave behind, in lower case; they are skipped, as hidden ones are."""
CENTRAL = 256 / 224
"""Ratio of the shorter side to the central crop (He et al. 2016)."""

Pixels = npt.NDArray[np.uint8]
Side = Annotated[int, _params.Field(ge=8)]
Size = Side | tuple[Side, Side]
"""Height and width in pixels, one number where they are equal."""
_T = TypeVar("_T")
_AHEAD = 32  # images of a thread that are decoded before they are asked for
_OWN_BROKEN = "this file is your own: put a sound copy in its place, or remove it from the folder"


@dataclass
class ImageFiles:
    """Images of one split that are still files, as `Samples.inputs`; iteration decodes them one by one.

    Attributes:
        size: Height and width to decode to, one number where they are equal.
        margin: Size before the central crop, in units of `size`.
        own: Whether they are photographs of the user's own: turned as their orientation tags say, and named as the
            user's if they are broken.
    """

    files: Sequence[Path]
    size: Size = 224
    margin: float = 1.0
    own: bool = False
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """Images, height, width, channels."""
        return (len(self.files), *sides(self.size), 3)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Labels) -> ImageFiles:
        part = replace(self, files=[self.files[i] for i in index])
        if "digests" in vars(self):  # they were read already
            vars(part)["digests"] = [self.digests[i] for i in index]
        return part

    def __iter__(self) -> Iterator[Pixels]:
        read = functools.partial(read_image, size=self.size, margin=self.margin, own=self.own)
        yield from parallel(read, self.files)

    @functools.cached_property
    def digests(self) -> Sequence[bytes]:
        """SHA-256 of each file, by which images are numbered whatever they are decoded to."""
        return [bytes.fromhex(digest) for digest in parallel(file_digest, self.files)]


def decoded(samples: Samples) -> Samples:
    """Returns the samples with their images decoded in memory."""
    inputs = samples.inputs
    if isinstance(inputs, ImageFiles):
        inputs = np.fromiter(inputs, dtype=np.dtype((np.uint8, inputs.shape[1:])), count=len(inputs))
    return Samples(inputs, samples.labels)


def sized(corpus: Corpus, size: Size, margin: float = 1.0) -> Corpus:
    """Returns the same images with another size to decode to (see `ImageFiles`)."""
    train, test = (
        Samples(replace(each.inputs, size=size, margin=margin), each.labels) for each in (corpus.train, corpus.test)
    )
    return replace(corpus, train=train, test=test)


class ImageDataset(Dataset):
    """A data set of image files, in its official layout or as `<name>/{train,test}/<class>/*`.

    The augmentation is CIFAR's at scale: a random crop after zero padding of an eighth (4 of 32) and a horizontal flip.

    Attributes:
        name: Folder of the tree under the data root; the name of the plugin.
        margin: Size of an image before the central crop, in units of `size`.
    """

    cached = True
    name: ClassVar[str]
    margin: float = CENTRAL

    class Params(DatasetParams):
        """Size of the decoded images."""

        size: Size = _params.Field(
            224, description="pixels that images are decoded to: one number, or [height, width] if they are not square"
        )

    def __init__(self, params: _params.Params | None = None) -> None:
        super().__init__(params)
        self.augmentation = Augmentation(crop_padding=min(sides(self.params.size)) // 8, flip=True)

    def official(self, paths: tuple[Path, ...]) -> Corpus:
        """Lists the images of the official layout at `paths`: by default class folders that are split here."""
        names, images = class_folders(paths[0])
        total = self.train_samples + self.test_samples
        if len(images) != total:
            within = (path for name in names for path in (paths[0] / name).glob("*/**/*"))
            deeper = sum(path.suffix.lower() in SUFFIXES for path in within)
            more = f"; {deeper} more lie in folders below their class folder" if deeper else ""
            raise DataError(f"{len(images)} images, expected {total}{more}")
        return Corpus(*split_samples(images, self.test_samples, names), names)

    def load(self, root: Path) -> Corpus:
        """Lists the image files of the first layout that is there.

        Raises:
            DataError: If there is none, or it is incomplete; the message says where to put which file.
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
    """Lists the images of a folder whose subfolders are the classes, in the order of their names.

    Raises:
        DataError: If the folder cannot be read, has no class folders, or one of them has no image.
    """
    names = sorted(entry.name for entry in visible(folder) if entry.is_dir())
    if not names:
        raise DataError(f"{folder} has no class folders")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = sorted(e.path for e in visible(folder / name) if Path(e.name).suffix.lower() in SUFFIXES)
        if not images:
            raise DataError(f"class folder {folder / name} has no image ({', '.join(sorted(SUFFIXES))})")
        files += map(Path, images)
        labels += [label] * len(images)
    return tuple(names), Samples(ImageFiles(files), np.array(labels, dtype=np.int64))


def class_tree(train: Path, test: Path) -> Corpus:
    """Lists a training and a test folder, which must have the same class folders; raises as `class_folders` does."""
    names, train_images = class_folders(train)
    test_names, test_images = class_folders(test)
    if names != test_names:
        odd = sorted(set(names) ^ set(test_names))
        raise DataError(f"{train} and {test} have different class folders: {', '.join(odd[:5])} is in one only")
    return Corpus(train_images, test_images, names)


def unnested(folder: Path) -> Path:
    """Returns `folder/folder` if that is the only folder within, as some archives unpack."""
    inner = folder / folder.name
    nested = inner.is_dir() and [entry.name for entry in visible(folder) if entry.is_dir()] == [folder.name]
    return inner if nested else folder


def visible(folder: Path) -> list[os.DirEntry[str]]:
    """Returns what a folder holds, without what is hidden or left behind by a system."""
    try:
        with os.scandir(folder) as entries:
            return [each for each in entries if not each.name.startswith(".") and each.name.lower() not in JUNK]
    except OSError as error:
        raise DataError(f"cannot read folder {folder}: {error.strerror or error}") from error


def sides(size: Size) -> tuple[int, int]:
    """Returns height and width."""
    return (size, size) if isinstance(size, int) else size


def read_image(path: Path, size: Size, margin: float, own: bool = False) -> Pixels:
    """Decodes an image, makes it just as large as `size * margin` (bicubic, antialiased) and crops the centre.

    For a square its shorter side becomes `size * margin`. It rounds as torchvision's `Resize` and `CenterCrop` do, and
    like them ignores orientation tags; an `own` image is turned as its tag says.

    Returns:
        uint8 `[height, width, 3]`, RGB.
    """
    try:
        with Image.open(path) as image:
            rgb = _to_rgb(ImageOps.exif_transpose(image) if own else image)
    except MemoryError:
        raise
    except Exception as error:  # the decoder of a damaged image may raise anything
        raise DataError(
            f"broken image {path}: {' '.join(str(error).split()) or type(error).__name__}",
            hint=_OWN_BROKEN if own else "put the official file in its place, or fetch the data set again",
        ) from error
    height, width = sides(size)
    wide, high = round(width * margin), round(height * margin)  # the image must cover both
    if rgb.width * high <= rgb.height * wide:
        shape = (wide, max(high, int(wide * rgb.height / rgb.width)))
    else:
        shape = (max(wide, int(high * rgb.width / rgb.height)), high)
    if rgb.size != shape:
        rgb = rgb.resize(shape, Image.Resampling.BICUBIC)
    left, top = round((rgb.width - width) / 2), round((rgb.height - height) / 2)
    return np.asarray(rgb.crop((left, top, left + width, top + height)))


def _to_rgb(image: Image.Image) -> Image.Image:
    """Returns the first frame as RGB: 16-bit grey keeps its high byte, transparent pixels become white."""
    if image.mode.startswith("I;16"):
        grey = np.asarray(image).astype(np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode in ("F", "I"):
        raise ValueError(
            f"pixels of mode {image.mode!r} have no known scale; save it as PNG with 8 or 16 bits per channel"
        )
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")


def parallel(function: Callable[[Path], _T], files: Sequence[Path]) -> Iterator[_T]:
    """Yields the results in order; only a few are in memory at a time."""
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    window = workers * _AHEAD
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        try:
            for start in range(0, len(files), window):
                yield from pool.map(function, files[start : start + window])
        finally:
            pool.shutdown(cancel_futures=True)
