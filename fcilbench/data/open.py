"""Opens a data set: loads, numbers and verifies its samples, once for all cells where it is cached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fcilbench.api.dataset import Corpus, Dataset, Samples
from fcilbench.data.cache import open_cached
from fcilbench.data.content import decoded, number
from fcilbench.errors import DataError


def open_dataset(
    dataset: Dataset, root: Path, progress: Callable[[int, int], None] | None = None, *, fresh: bool = False
) -> tuple[Corpus, str]:
    """Loads, verifies and numbers the samples by content, then keeps the requested number per class.

    A cached data set is memory-mapped: it is read and numbered once, and again when its files change.

    Args:
        dataset: The data set.
        root: The data root.
        progress: Called with the number of samples done and of all samples while a cache is made.
        fresh: Read everything again, whatever the cache holds.

    Returns:
        The corpus and the content digest of the whole data set.

    Raises:
        DataError: If the data are missing or damaged, or their counts or digest differ from what the plugin declares.
    """
    if dataset.cached:
        corpus, digest = open_cached(dataset, root, lambda: _numbered(dataset, root), progress, fresh=fresh)
    else:
        corpus, digest = _numbered(dataset, root)
    _check(dataset, corpus, digest)
    train = _per_class(decoded(corpus.train), dataset.params.train_per_class)
    test = _per_class(decoded(corpus.test), dataset.params.test_per_class)
    return Corpus(train, test, corpus.class_names, corpus.outside), digest


def _numbered(dataset: Dataset, root: Path) -> tuple[Corpus, str]:
    """Loads the samples in the order of their content and verifies them; counts before anything is hashed."""
    corpus = dataset.load(root)
    _check(dataset, corpus, dataset.fingerprint)
    corpus, digest = number(corpus)
    _check(dataset, corpus, digest)
    return corpus, digest


def _check(dataset: Dataset, corpus: Corpus, digest: str) -> None:
    name, found = type(dataset).__name__, (len(corpus.class_names), len(corpus.train), len(corpus.test))
    expected = (dataset.classes, dataset.train_samples, dataset.test_samples)
    if found != expected:
        raise DataError(f"{name}: classes, train, test are {found}, expected {expected}")
    if dataset.fingerprint and digest != dataset.fingerprint:
        raise DataError(
            f"{name}: content digest {digest} is not the declared {dataset.fingerprint}",
            hint="the files under the data root are not the official data; fetch them again",
        )


def _per_class(samples: Samples, limit: int | None) -> Samples:
    if limit is None:
        return samples
    kept = [np.flatnonzero(samples.labels == label)[:limit] for label in np.unique(samples.labels)]
    return samples.take(np.sort(np.concatenate(kept)))
