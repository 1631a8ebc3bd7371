"""Checks of data sets: terms, default tasks, declared content, samples per class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fcilbench.api import Augmentation, Corpus, Dataset
from fcilbench.data.open import open_dataset
from fcilbench.data.root import data_root
from fcilbench.errors import FcilbenchError, PrerequisiteError
from fcilbench.federation.tasks import equal_tasks
from fcilbench.testing.check import CheckFailed, Checks, NotApplicable, Subject, plugin_checks

CHECKS: Checks[DatasetSubject] = plugin_checks(Dataset)


@dataclass
class DatasetSubject(Subject[Dataset]):
    """A data set class with hyperparameters, and the data root (`None`: the default)."""

    root: Path | None = None

    @cached_property
    def loaded(self) -> tuple[Corpus, str]:
        """The corpus and its digest."""
        return self.open(self.make())

    def open(self, plugin: Dataset) -> tuple[Corpus, str]:
        """Opens an instance under the data root; the check does not apply if the data are not on this machine."""
        try:
            return open_dataset(plugin, data_root(self.root))
        except PrerequisiteError as error:
            if type(error) is PrerequisiteError or "expected" not in str(error):
                raise NotApplicable(f"the data are not here: {error}") from error
            raise CheckFailed(str(error)) from error


@CHECKS.add
def terms(subject: DatasetSubject) -> None:
    """Licence, homepage and citation are declared, and so is the content digest.

    Fix: copy the terms from the data set's own page, and the digest from the message of `fcilbench data verify`.
    """
    plugin = subject.make()
    if missing := [name for name in ("licence", "homepage", "citation") if not getattr(plugin, name).strip()]:
        raise CheckFailed(f"not declared: {', '.join(missing)}")
    if plugin.fingerprint and not plugin.fingerprint.startswith("sha256:"):
        raise CheckFailed(f"fingerprint {plugin.fingerprint!r} is no `sha256:...`")


@CHECKS.add
def default_tasks(subject: DatasetSubject) -> None:
    """Its default split into tasks uses each class once.

    Fix: a number that divides the classes, or a tuple of class counts that sums to them.
    """
    plugin = subject.make()
    try:
        sizes = equal_tasks(plugin.classes, plugin.default_tasks)
    except FcilbenchError as error:
        raise CheckFailed(str(error)) from error
    if sum(sizes) != plugin.classes or min(sizes) < 1:
        raise CheckFailed(f"tasks {list(sizes)} sum to {sum(sizes)}, there are {plugin.classes} classes")


@CHECKS.add
def declared_content(subject: DatasetSubject) -> None:
    """What is loaded has the declared counts and digest.

    Fix: correct `classes`, `train_samples`, `test_samples` or `fingerprint`, or fetch the data again.
    """
    _, digest = subject.loaded
    if subject.cls.fingerprint and digest != subject.cls.fingerprint:
        raise CheckFailed(f"the digest is {digest}, declared is {subject.cls.fingerprint}")


@CHECKS.add
def samples(subject: DatasetSubject) -> None:
    """Inputs are uint8 images `[n, height, width, channels]` or texts; every class has train and test samples.

    Fix: labels are indices into `class_names`; convert images to uint8 RGB or grey.
    """
    corpus, _ = subject.loaded
    if len(set(corpus.class_names)) != len(corpus.class_names):
        raise CheckFailed("two classes have the same name")
    for name, split in (("train", corpus.train), ("test", corpus.test)):
        image = split.inputs.dtype == np.uint8 and split.inputs.ndim == 4 and split.inputs.shape[3] in (1, 3)
        text = subject.cls.modality == "text" and all(isinstance(each, str) for each in split.inputs[:100])
        if not (text or (subject.cls.modality == "vision" and image)):
            raise CheckFailed(f"{name} inputs are {split.inputs.dtype} {split.inputs.shape}")
        found = set(np.unique(split.labels).tolist())
        if found != set(range(len(corpus.class_names))):
            raise CheckFailed(f"{name} labels are {min(found)}..{max(found)}: {len(found)} classes")
    if not isinstance(subject.make().augmentation, Augmentation):
        raise CheckFailed(f"augmentation is a {type(subject.make().augmentation).__name__}")


@CHECKS.add
def per_class(subject: DatasetSubject) -> None:
    """`train_per_class` and `test_per_class` keep the first samples of each class, and the digest of the whole.

    Fix: derive `Params` from DatasetParams, and return all samples from `load`.
    """
    whole, digest = subject.loaded
    corpus, other = subject.open(subject.make(train_per_class=2, test_per_class=1))
    if other != digest:
        raise CheckFailed("the digest is that of the kept samples")
    for name, split, full, limit in (("train", corpus.train, whole.train, 2), ("test", corpus.test, whole.test, 1)):
        counts, available = np.bincount(split.labels), np.bincount(full.labels)
        if not np.array_equal(counts, np.minimum(available, limit)):
            raise CheckFailed(f"{name} keeps {counts.min()}..{counts.max()} samples a class, not {limit}")
