"""The content of samples decides their numbers and splits: no file name, no file order and no generator has a say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fcilbench.api.dataset import Corpus, Labels, Samples
from fcilbench.errors import DataError


class LazyInputs(Protocol):
    """Inputs of one split that are decoded one by one when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all of them decoded, `[n, ...]`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of them decoded."""

    def __len__(self) -> int:
        """Returns how many there are."""

    def __getitem__(self, index: Labels) -> LazyInputs:
        """Returns those at `index`, in that order."""

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Iterates over them, decoded.

        Raises:
            DataError: If one cannot be decoded; the message names it.
        """

    def contents(self) -> Sequence[bytes]:
        """Returns what each is numbered by."""


def decoded(samples: Samples) -> Samples:
    """Returns samples whose inputs are all in memory."""
    if isinstance(samples.inputs, np.ndarray):
        return samples
    inputs = np.empty(samples.inputs.shape, dtype=samples.inputs.dtype)
    for target, row in zip(inputs, samples.inputs, strict=True):
        target[...] = row
    return Samples(inputs, samples.labels)


def number(corpus: Corpus) -> tuple[Corpus, str]:
    """Numbers the samples of each split by the digest of (label, content); equal samples are interchangeable.

    Args:
        corpus: Samples in any order.

    Returns:
        The same samples in the order of their digests, and the content digest of the whole data set.
    """
    train, train_digests = _by_content(corpus.train)
    test, test_digests = _by_content(corpus.test)
    parts = [*train_digests, b"test", *test_digests, *(name.encode() for name in corpus.class_names)]
    digest = "sha256:" + hashlib.sha256(b"\0".join(parts)).hexdigest()
    return replace(corpus, train=train, test=test), digest


def _by_content(samples: Samples) -> tuple[Samples, list[bytes]]:
    inputs = samples.inputs
    contents = map(_bytes, inputs) if isinstance(inputs, np.ndarray) else inputs.contents()
    digests = [
        hashlib.blake2b(content, digest_size=16, salt=int(label).to_bytes(8, "big")).digest()
        for content, label in zip(contents, samples.labels, strict=True)
    ]
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    return samples.take(order), [digests[i] for i in order]


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes()


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
