"""Samples that know their content, whether they are in memory or still encoded; the numbering follows from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fcilbench.api.samples import Samples

Labels = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Called with the number of samples done and of all samples."""


class Source(Protocol):
    """Samples of one split, in memory or decoded when asked for."""

    @property
    def labels(self) -> Labels:
        """int64 `[n]`, index into the class names."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one decoded input."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the decoded inputs."""

    def digests(self) -> list[bytes]:
        """Returns the digest of each (label, content)."""

    def take(self, index: Labels) -> Source:
        """Returns the samples at `index`, in that order."""

    def rows(self) -> Iterator[npt.NDArray[Any]]:
        """Yields the decoded inputs one after another.

        Raises:
            DataError: If one cannot be decoded; the message names it.
        """

    def samples(self) -> Samples:
        """Returns all of them decoded, in memory."""


@dataclass(frozen=True)
class Arrays:
    """Samples that are in memory already.

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

    def samples(self) -> Samples:
        """Returns the samples."""
        return self.held


@dataclass(frozen=True)
class Listing:
    """The samples of a data set before they are numbered.

    Attributes:
        train: Training samples.
        test: Test samples.
        class_names: Name of each label.
        outside: See `Corpus.outside`.
    """

    train: Source
    test: Source
    class_names: tuple[str, ...]
    outside: npt.NDArray[Any] | None = None


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
    return Listing(train, test, listing.class_names, listing.outside), digest


def salted(content: bytes, label: int) -> bytes:
    """Returns the digest of (label, content), 16 bytes."""
    return hashlib.blake2b(content, digest_size=16, salt=label.to_bytes(8, "big")).digest()


def _by_content(source: Source) -> tuple[Source, list[bytes]]:
    digests = source.digests()
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    return source.take(order), [digests[i] for i in order]


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes()
