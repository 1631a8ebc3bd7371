"""Data sets: raw samples with labels, numbered by their content so that every archive layout gives the same streams."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fcilbench.api.content import Arrays, Listing, Progress, number
from fcilbench.api.samples import Augmentation, Corpus, Samples
from fcilbench.errors import DataError
from fcilbench.spec import params as _params
from fcilbench.spec.archive import Archive
from fcilbench.spec.plugin import Plugin

__all__ = ["Augmentation", "Corpus", "Dataset", "DatasetParams", "Modality", "Samples"]

Modality = Literal["vision", "text"]


class DatasetParams(_params.Params):
    """Hyperparameters that every data set has."""

    train_per_class: int | None = _params.Field(None, ge=1, description="training samples kept of each class")
    test_per_class: int | None = _params.Field(None, ge=1, description="test samples kept of each class")


class Dataset(Plugin):
    """A data set plugin.

    Attributes:
        modality: `vision` or `text`.
        classes: Number of classes.
        default_tasks: Number of equal tasks, or classes per task, when a suite does not say.
        train_samples: Expected number of training samples.
        test_samples: Expected number of test samples.
        fingerprint: Expected content digest (`content_digest`), or "" if it cannot be declared.
        augmentation: Training augmentation that the field uses for it; an instance may have its own.
        cached: Whether the decoded samples are kept in the cache folder (`fcilbench.data.cache`), which needs arrays of
            numbers. It holds as long as the files of its layout and the plugin's code stay as they are.
        layouts: Alternative sets of paths under the data root, one of which holds the data; () if it needs no files.
        archives: What `fcilbench data fetch` gets and unpacks.
        by_hand: Where to get the archives that have no address, and why.
        licence: Terms of the data.
        homepage: Where it comes from.
        citation: Whom to cite.
    """

    modality: ClassVar[Modality] = "vision"
    classes: ClassVar[int]
    default_tasks: ClassVar[int | tuple[int, ...]]
    train_samples: ClassVar[int]
    test_samples: ClassVar[int]
    fingerprint: ClassVar[str] = ""
    augmentation: Augmentation = Augmentation()
    cached: ClassVar[bool] = False
    layouts: ClassVar[tuple[tuple[str, ...], ...]] = ()
    archives: ClassVar[tuple[Archive, ...]] = ()
    by_hand: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    homepage: ClassVar[str] = ""
    citation: ClassVar[str] = ""

    class Params(DatasetParams):
        """Only the common hyperparameters."""

    @abstractmethod
    def load(self, root: Path) -> Corpus:
        """Reads the whole data set from the layout of its official archive under `root`.

        Raises:
            DataError: If it is not there or not complete; the message says where to put what.
        """

    def listing(self, root: Path) -> Listing:
        """Lists the samples; override it instead of decoding in `load` where they do not fit into memory twice."""
        corpus = self.load(root)
        return Listing(Arrays(corpus.train), Arrays(corpus.test), corpus.class_names, corpus.outside)

    def open(self, root: Path, progress: Progress | None = None, *, fresh: bool = False) -> tuple[Corpus, str]:
        """Loads, verifies and numbers the samples by content, then keeps the requested number per class.

        A cached data set is memory-mapped: it is read and numbered once, and again when its files change.

        Args:
            root: The data root.
            progress: Called with the number of samples done and of all samples while a cache is made.
            fresh: Read everything again, whatever the cache holds.

        Returns:
            The corpus and the content digest of the whole data set.

        Raises:
            DataError: If counts or digest differ from what the plugin declares.
        """
        if self.cached:
            from fcilbench.data.cache import open_cached

            corpus, digest = open_cached(self, root, progress, fresh=fresh)
        else:
            listing, digest = self.numbered(root)
            corpus = Corpus(listing.train.samples(), listing.test.samples(), listing.class_names, listing.outside)
        self._check(len(corpus.class_names), len(corpus.train), len(corpus.test), digest)
        kept = Corpus(
            _per_class(corpus.train, self.params.train_per_class),
            _per_class(corpus.test, self.params.test_per_class),
            corpus.class_names,
            corpus.outside,
        )
        return kept, digest

    def numbered(self, root: Path) -> tuple[Listing, str]:
        """Lists the samples, numbers them by content and verifies them; the cache keeps what this returns.

        Raises:
            DataError: If counts or digest differ from what the plugin declares.
        """
        listing = self.listing(root)
        sizes = len(listing.class_names), len(listing.train.labels), len(listing.test.labels)
        self._check(*sizes, self.fingerprint)
        listing, digest = number(listing)
        self._check(*sizes, digest)
        return listing, digest

    def _check(self, classes: int, train: int, test: int, digest: str) -> None:
        expected = (self.classes, self.train_samples, self.test_samples)
        if (classes, train, test) != expected:
            found = (classes, train, test)
            raise DataError(f"{type(self).__name__}: classes, train, test are {found}, expected {expected}")
        if self.fingerprint and digest != self.fingerprint:
            raise DataError(
                f"{type(self).__name__}: content digest {digest} is not the declared {self.fingerprint}",
                hint="the files under the data root are not the official data; fetch them again",
            )

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Returns counts, default split, digest and terms."""
        tasks = cls.default_tasks
        return {
            "modality": cls.modality,
            "classes": cls.classes,
            "default_tasks": tasks if isinstance(tasks, int) else list(tasks),
            "train": cls.train_samples,
            "test": cls.test_samples,
            "fingerprint": cls.fingerprint,
            "licence": cls.licence,
            "homepage": cls.homepage,
            "citation": cls.citation,
            "layouts": [list(layout) for layout in cls.layouts],
            "archives": [asdict(archive) for archive in cls.archives],
            "by_hand": cls.by_hand,
        }


def _per_class(samples: Samples, limit: int | None) -> Samples:
    if limit is None:
        return samples
    kept = [np.flatnonzero(samples.labels == label)[:limit] for label in np.unique(samples.labels)]
    return samples.take(np.sort(np.concatenate(kept)))
