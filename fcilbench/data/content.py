"""Numbers and splits samples by their content alone: names and order of files do not matter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fcilbench.api.dataset import Corpus, Labels, Samples
from fcilbench.errors import DataError


def number(corpus: Corpus) -> tuple[Corpus, str]:
    """Returns the samples of each split in the order of the digests of (label, content), and the data set's digest."""
    train, train_digests = _by_content(corpus.train)
    test, test_digests = _by_content(corpus.test)
    parts = [*train_digests, b"test", *test_digests, *(name.encode() for name in corpus.class_names)]
    digest = "sha256:" + hashlib.sha256(b"\0".join(parts)).hexdigest()
    return replace(corpus, train=train, test=test), digest


def contents(samples: Samples) -> Iterable[bytes]:
    """Returns the content of each sample; of an image that is still a file, the SHA-256 of the file."""
    inputs = samples.inputs
    return map(_bytes, inputs) if isinstance(inputs, np.ndarray) else inputs.digests


def _by_content(samples: Samples) -> tuple[Samples, list[bytes]]:
    digests = [
        hashlib.blake2b(content, digest_size=16, salt=int(label).to_bytes(8, "big")).digest()
        for content, label in zip(contents(samples), samples.labels, strict=True)
    ]
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    return samples.take(order), [digests[i] for i in order]


def _bytes(value: str | npt.NDArray[Any]) -> bytes:
    return value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes()


def split_samples(samples: Samples, count: int, names: Sequence[str] = ()) -> tuple[Samples, Samples]:
    """Splits samples into training and test samples, see `stratified_split`; digests are SHA-256 of their content."""
    inputs = samples.inputs
    if isinstance(inputs, np.ndarray):
        digests = [hashlib.sha256(_bytes(value)).digest() for value in inputs]
    else:
        digests = inputs.digests
    train, test = stratified_split(samples.labels, digests, count, names)
    return samples.take(train), samples.take(test)


def stratified_split(
    labels: Labels, digests: Sequence[bytes], count: int, names: Sequence[str] = ()
) -> tuple[Labels, Labels]:
    """Splits off a test set of exactly `count` samples: of each class the same share, those with the lowest digests.

    Shares are rounded by largest remainder (ties: the lower label); each class has a sample in both parts. An error
    calls the classes by their `names`, if there are any.

    Returns:
        Indices of the training and of the test samples, in ascending order.

    Raises:
        DataError: If no such split exists.
    """
    sizes = np.bincount(labels)
    if problem := _unsplittable(sizes, count, names):
        raise DataError(f"{len(labels)} samples of {len(sizes)} classes {problem}")
    share = sizes * (count / len(labels))
    quota = np.clip(np.floor(share).astype(np.int64), 1, sizes - 1)
    while (missing := count - int(quota.sum())) != 0:
        step = 1 if missing > 0 else -1
        movable = (quota < sizes - 1) if step > 0 else (quota > 1)
        quota[np.argmax(np.where(movable, step * (share - quota), -np.inf))] += step
    is_test = np.zeros(len(labels), dtype=bool)
    for label, cut in enumerate(quota):
        members = np.flatnonzero(labels == label).tolist()
        is_test[sorted(members, key=digests.__getitem__)[:cut]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _unsplittable(sizes: Labels, count: int, names: Sequence[str]) -> str:
    """Returns why classes of these sizes do not give so many test samples; "" if they do."""
    least, most = len(sizes), int(sizes.sum()) - len(sizes)
    if single := np.flatnonzero(sizes < 2).tolist():
        shown = ", ".join(repr(names[label]) if names else str(label) for label in single[:3])
        more = f" and {len(single) - 3} more" if len(single) > 3 else ""
        few = "no sample" if sizes[single[0]] == 0 else "one sample"
        return f"cannot give {count} test samples to all classes: {shown}{more} has {few}, and both parts need one"
    if not least <= count <= most:
        return f"cannot give {count} test samples to all classes: each needs one in both parts, so {least} to {most}"
    return ""
