"""Image files of one split, decoded to equal uint8 squares when asked for, in parallel."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from fcilbench.api.content import Labels, salted
from fcilbench.api.samples import Samples
from fcilbench.errors import DataError

Pixels = npt.NDArray[np.uint8]
_T = TypeVar("_T")
_AHEAD = 32  # images of a thread that are decoded before they are asked for


class ImageFiles:
    """Images of one split that are still files (a `fcilbench.api.content.Source`).

    They are numbered by the bytes of the files, so that neither the version of a decoder nor `size` changes a stream.

    Args:
        files: Where they are.
        labels: int64 `[n]`.
        size: Height and width of a decoded image.
        margin: Length of the shorter side before the central crop, in units of `size`; 1 crops only what is not square.
        content: SHA-256 of each file, if known.
    """

    def __init__(
        self,
        files: Sequence[Path],
        labels: Labels,
        size: int,
        margin: float,
        content: Sequence[bytes] | None = None,
    ) -> None:
        self.files, self.labels, self.size, self.margin = files, labels, size, margin
        self._content = content

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Height, width, channels."""
        return (self.size, self.size, 3)

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8."""
        return np.dtype(np.uint8)

    def content(self) -> Sequence[bytes]:
        """Returns the SHA-256 of each file; reads them once.

        Raises:
            DataError: If one cannot be read.
        """
        if self._content is None:
            self._content = list(_parallel(_sha256, self.files))
        return self._content

    def digests(self) -> list[bytes]:
        """Returns the digest of each (label, bytes of the file)."""
        return [salted(each, int(label)) for each, label in zip(self.content(), self.labels, strict=True)]

    def take(self, index: Labels) -> ImageFiles:
        """Returns the images at `index`, in that order."""
        content = self._content
        known = None if content is None else [content[i] for i in index]
        return ImageFiles([self.files[i] for i in index], self.labels[index], self.size, self.margin, known)

    def rows(self) -> Iterator[Pixels]:
        """Yields the images uint8 `[size, size, 3]`, decoded by as many threads as there are cores.

        Raises:
            DataError: If a file is broken; the message names it.
        """
        yield from _parallel(functools.partial(read_image, size=self.size, margin=self.margin), self.files)

    def samples(self) -> Samples:
        """Returns all images decoded, in memory."""
        pixels = np.empty((len(self.files), *self.row_shape), dtype=np.uint8)
        for row, image in zip(pixels, self.rows(), strict=True):
            row[:] = image
        return Samples(pixels, self.labels)


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
    """Returns the first frame as RGB: grey is repeated, 16-bit grey keeps its high byte, CMYK and palettes convert.

    Transparent pixels show white, as on a page: colours that nobody sees do not count.
    """
    if image.mode.startswith("I;16"):
        grey = np.asarray(image).astype(np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")


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
