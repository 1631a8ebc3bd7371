"""Data sets: raw samples with labels, numbered by their content so that every archive layout gives the same streams."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fcilbench.api import params as _params
from fcilbench.api.plugin import Plugin
from fcilbench.errors import DataError

Modality = Literal["vision", "text"]


@dataclass(frozen=True)
class Samples:
    """Inputs with their labels.

    Attributes:
        inputs: Vision: uint8 `[n, height, width, channels]`. Text: `str` objects `[n]`.
        labels: int64 `[n]`, index into the corpus' class names.
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise DataError(f"{len(self.inputs)} inputs but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: npt.NDArray[np.int64]) -> Samples:
        """Returns the samples at `index`, in that order."""
        return Samples(self.inputs[index], self.labels[index])


@dataclass(frozen=True)
class Corpus:
    """Train and test samples of one data set.

    Attributes:
        train: Training samples.
        test: Test samples.
        class_names: Name of each label.
        outside: Test inputs that belong to no class, for out-of-scope detection; `None` where there are none.
    """

    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    outside: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Augmentation:
    """Training augmentation of images at their native size, before they are resized for the backbone.

    Attributes:
        crop_padding: Zero padding on each side before a random crop back to size; 0 is off.
        flip: Random horizontal flip with probability one half.
    """

    crop_padding: int = 0
    flip: bool = False


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
        augmentation: Training augmentation that the field uses for it.
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
    augmentation: ClassVar[Augmentation] = Augmentation()
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

    def open(self, root: Path) -> tuple[Corpus, str]:
        """Loads, verifies and numbers the samples by content, then keeps the requested number per class.

        Args:
            root: The data root.

        Returns:
            The corpus and the content digest of the whole data set.

        Raises:
            DataError: If counts or digest differ from what the plugin declares.
        """
        corpus = self.load(root)
        found = (len(corpus.class_names), len(corpus.train), len(corpus.test))
        expected = (self.classes, self.train_samples, self.test_samples)
        if found != expected:
            raise DataError(f"{type(self).__name__}: classes, train, test are {found}, expected {expected}")
        train, train_digests = _by_content(corpus.train)
        test, test_digests = _by_content(corpus.test)
        digest = _join([*train_digests, b"test", *test_digests, *(name.encode() for name in corpus.class_names)])
        if self.fingerprint and digest != self.fingerprint:
            raise DataError(
                f"{type(self).__name__}: content digest {digest} is not the declared {self.fingerprint}",
                hint="the files under the data root are not the official data; fetch them again",
            )
        kept = Corpus(
            _per_class(train, self.params.train_per_class),
            _per_class(test, self.params.test_per_class),
            corpus.class_names,
            corpus.outside,
        )
        return kept, digest

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
        }


def _by_content(samples: Samples) -> tuple[Samples, list[bytes]]:
    """Sorts samples by the digest of (label, input); equal samples are interchangeable."""
    digests = [
        hashlib.blake2b(_bytes(value), digest_size=16, salt=int(label).to_bytes(8, "big")).digest()
        for value, label in zip(samples.inputs, samples.labels, strict=True)
    ]
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    return samples.take(order), [digests[i] for i in order]


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else np.ascontiguousarray(value).tobytes()


def _join(parts: list[bytes]) -> str:
    return "sha256:" + hashlib.sha256(b"\0".join(parts)).hexdigest()


def _per_class(samples: Samples, limit: int | None) -> Samples:
    if limit is None:
        return samples
    kept = [np.flatnonzero(samples.labels == label)[:limit] for label in np.unique(samples.labels)]
    return samples.take(np.sort(np.concatenate(kept)))
