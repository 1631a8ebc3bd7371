"""Trees of class folders, and splits that follow from the content of their images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fcilbench.errors import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""What counts as an image, in any case; other files (`README.txt`, `Thumbs.db`) are passed over."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Listed:
    """Image files with their labels.

    Attributes:
        files: Where they are.
        labels: int64 `[n]`.
        content: SHA-256 of each file, if known.
    """

    files: Sequence[Path]
    labels: Indices
    content: Sequence[bytes] | None = None

    def take(self, index: Indices) -> Listed:
        """Returns the images at `index`, in that order."""
        content = None if self.content is None else [self.content[i] for i in index]
        return Listed([self.files[i] for i in index], self.labels[index], content)


def class_folders(folder: Path) -> tuple[tuple[str, ...], Listed]:
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
    return tuple(names), Listed(files, np.array(labels, dtype=np.int64))


def class_tree(train: Path, test: Path) -> tuple[tuple[str, ...], Listed, Listed]:
    """Lists a split that is two folders of the same class folders.

    Raises:
        DataError: Like `class_folders`, or if the two have different classes.
    """
    names, train_images = class_folders(train)
    test_names, test_images = class_folders(test)
    if names != test_names:
        odd = sorted(set(names) ^ set(test_names))
        raise DataError(f"{train} and {test} have different class folders: {', '.join(odd[:5])} is in one only")
    return names, train_images, test_images


def stratified_split(labels: Indices, content: Sequence[bytes], count: int) -> tuple[Indices, Indices]:
    """Splits off a test set of exactly `count` samples with the same share of each class.

    Shares are rounded by largest remainder (ties: the lower label); each class keeps a sample on either side. Within a
    class the samples are ordered by their digests and the first ones are the test set: the digest is the seed, so the
    split depends on no file name, no order and no generator.

    Args:
        labels: int64 `[n]`.
        content: Digest of each sample's content.
        count: Size of the test set.

    Returns:
        Indices of the training and of the test samples, each ascending.

    Raises:
        DataError: If no such split exists.
    """
    sizes = np.bincount(labels)
    if (sizes < 2).any() or not len(sizes) <= count <= len(labels) - len(sizes):
        raise DataError(
            f"{len(labels)} samples of {len(sizes)} classes cannot give {count} test samples to all classes"
        )
    share = sizes * (count / len(labels))
    quota = np.clip(np.floor(share).astype(np.int64), 1, sizes - 1)
    while (missing := count - int(quota.sum())) != 0:
        step = 1 if missing > 0 else -1
        movable = (quota < sizes - 1) if step > 0 else (quota > 1)
        quota[np.argmax(np.where(movable, step * (share - quota), -np.inf))] += step
    test: list[int] = []
    for label, cut in enumerate(quota):
        members = np.flatnonzero(labels == label).tolist()
        test += sorted(members, key=content.__getitem__)[:cut]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[test] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot read folder {folder}: {error.strerror or error}") from error
