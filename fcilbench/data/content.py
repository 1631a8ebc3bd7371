"""The content of samples decides their numbers and splits: no file name, no file order and no generator has a say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fcilbench.api.dataset import Corpus, Labels, Listing, Samples, Source
from fcilbench.errors import DataError


@dataclass(frozen=True)
class Arrays:
    """Samples that are in memory already, as a `Source`.

    Attributes:
        held: The samples.
    """

    held: Samples

    @property
    def labels(self) -> Labels:
        """int64 `[n]`."""
        return self.held.labels

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.held.inputs.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the inputs."""
        return self.held.inputs.dtype

    def digests(self) -> list[bytes]:
        """Returns the digest of each (label, input)."""
        pairs = zip(self.held.inputs, self.held.labels, strict=True)
        return [salted(_bytes(value), int(label)) for value, label in pairs]

    def take(self, index: Labels) -> Arrays:
        """Returns the samples at `index`, in that order."""
        return Arrays(self.held.take(index))

    def rows(self) -> Iterator[npt.NDArray[Any]]:
        """Yields the inputs one after another."""
        yield from self.held.inputs


def listed(data: Corpus | Listing) -> Listing:
    """Returns the samples of a corpus as sources; a listing is returned as it is."""
    if isinstance(data, Listing):
        return data
    return Listing(Arrays(data.train), Arrays(data.test), data.class_names, data.outside)


def decoded(listing: Listing) -> Corpus:
    """Decodes all samples into memory."""
    return Corpus(_samples(listing.train), _samples(listing.test), listing.class_names, listing.outside)


def number(listing: Listing) -> tuple[Listing, str]:
    """Numbers the samples of each split by the digest of (label, content); equal samples are interchangeable.

    Args:
        listing: Samples in any order.

    Returns:
        The same samples in the order of their digests, and the content digest of the whole data set.
    """
    train, train_digests = _by_content(listing.train)
    test, test_digests = _by_content(listing.test)
    parts = [*train_digests, b"test", *test_digests, *(name.encode() for name in listing.class_names)]
    digest = "sha256:" + hashlib.sha256(b"\0".join(parts)).hexdigest()
    return replace(listing, train=train, test=test), digest


def salted(content: bytes, label: int) -> bytes:
    """Returns the digest of (label, content), 16 bytes."""
    return hashlib.blake2b(content, digest_size=16, salt=label.to_bytes(8, "big")).digest()


def stratified_split(labels: Labels, content: Sequence[bytes], count: int) -> tuple[Labels, Labels]:
    """Splits off a test set of exactly `count` samples with the same share of each class.

    Shares are rounded by largest remainder (ties: the lower label); each class keeps a sample on either side. Within a
    class the samples are ordered by their digests, and the first ones are the test set.

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
    chosen = np.zeros(len(labels), dtype=bool)
    for label, cut in enumerate(quota):
        members = np.flatnonzero(labels == label).tolist()
        chosen[sorted(members, key=content.__getitem__)[:cut]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _by_content(source: Source) -> tuple[Source, list[bytes]]:
    digests = source.digests()
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    return source.take(order), [digests[i] for i in order]


def _samples(source: Source) -> Samples:
    if isinstance(source, Arrays):
        return source.held
    inputs = np.empty((len(source.labels), *source.row_shape), dtype=source.dtype)
    for target, row in zip(inputs, source.rows(), strict=True):
        target[...] = row
    return Samples(inputs, source.labels)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes()
