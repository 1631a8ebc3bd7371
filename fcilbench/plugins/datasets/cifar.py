"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) from their unpacked archives, which are alike but for names and labels."""

from __future__ import annotations

import codecs
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fcilbench.api import (
    Archive,
    Augmentation,
    Corpus,
    DataError,
    Dataset,
    Samples,
    class_tree,
    decoded_images,
    sized_images,
)

SITE = "https://www.cs.toronto.edu/~kriz"
PUBLISHED = "the University of Toronto and torchvision (datasets/cifar.py)"


class Cifar(Dataset):
    """Photographs of 32x32 pixels in the archive's pickles, or as lossless images in a tree of class folders.

    Augmentation is the usual one of the field: zero padding of 4, random crop, random horizontal flip (He et al. 2016,
    section 4.2).

    Attributes:
        name: Folder of the tree under the data root; the name of the plugin.
        folder: Folder of the archive.
        meta: Its file with the names of the classes, and their key.
        splits: Its files with the training and the test samples, and the key of their labels.
    """

    train_samples = 50_000
    test_samples = 10_000
    cached = True
    augmentation = Augmentation(crop_padding=4, flip=True)
    licence = "no formal licence; free for research with attribution"
    homepage = f"{SITE}/cifar.html"
    citation = "Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images, technical report, Toronto"
    name: ClassVar[str]
    folder: ClassVar[str]
    meta: ClassVar[tuple[str, str]]
    splits: ClassVar[tuple[tuple[str, ...], tuple[str, ...], str]]

    def load(self, root: Path) -> Corpus:
        """Reads both splits; inputs are uint8 `[n, 32, 32, 3]`, RGB.

        Raises:
            DataError: If a file is missing, truncated or not of the official format. Counts and content are compared
                with the official ones by whoever opens the data set.
        """
        folder, tree = root / self.folder, (root / self.name / "train", root / self.name / "test")
        if not folder.exists() and all(path.exists() for path in tree):
            found = sized_images(class_tree(*tree), 32)
            # Decoded here, so that they are numbered by their pixels like the official archive.
            return Corpus(decoded_images(found.train), decoded_images(found.test), found.class_names)
        file, key = self.meta
        (names,) = self._read(folder / file, key)
        train, test, labels = self.splits
        train_part, test_part = (self._split([folder / file for file in files], labels) for files in (train, test))
        return Corpus(train_part, test_part, tuple(map(_text, names)))

    def _split(self, paths: list[Path], key: str) -> Samples:
        """Reads one split: rows of 3,072 bytes (red, green and blue planes of 32x32) and a list of labels."""
        images, labels = [], []
        for path in paths:
            rows, own = self._read(path, "data", key)
            try:
                planes = np.asarray(rows).reshape(-1, 3, 32, 32)
                images.append(planes.transpose(0, 2, 3, 1))
                labels.append(np.array(own, dtype=np.int64))
                Samples(images[-1], labels[-1])
            except (DataError, TypeError, ValueError) as error:
                raise self._error(path, f"is not of the official format: {error}") from error
        return Samples(np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels))

    def _read(self, path: Path, *keys: str) -> list[Any]:
        """Returns the values of some keys of a pickled dictionary."""
        try:
            with path.open("rb") as file:
                record = {_text(key): value for key, value in _Unpickler(file, encoding="bytes").load().items()}
        except OSError as error:
            raise self._error(path, f"cannot be read: {error.strerror or error}") from error
        except Exception as error:  # a damaged pickle may raise anything
            raise self._error(path, f"truncated or damaged: {error or type(error).__name__}") from error
        if missing := [key for key in keys if key not in record]:
            raise self._error(path, f"has no entry {missing[0]!r}, only {sorted(record)}")
        return [record[key] for key in keys]

    def _error(self, path: Path, what: str) -> DataError:
        (archive,), (train, test, _) = self.archives, self.splits
        files = " and ".join([", ".join([*train, *test]), self.meta[0]])
        return DataError(
            f"{self.name}: {path}: {what}",
            hint=f"unpack {archive.url} ({archive.checksum}) so that {path.parent} holds {files}; "
            "another data root is set by --data or FCILBENCH_DATA",
        )


class Cifar10(Cifar):
    """60,000 colour photographs of 32x32 pixels in 10 classes (Krizhevsky, 2009).

    Reads `cifar-10-batches-py/{data_batch_1 .. 5,test_batch,batches.meta}` under the data root or, where there is no
    such folder, lossless images of the same pixels from `cifar10/{train,test}/<class>/*`. No content digest is
    declared, since these files were never seen here; the archive's checksum is.
    """

    version = "1"
    classes = 10
    default_tasks = 5
    name = "cifar10"
    folder = "cifar-10-batches-py"
    meta = ("batches.meta", "label_names")
    splits = (tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",), "labels")
    layouts = (
        ("cifar-10-batches-py/batches.meta", "cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch"),
        ("cifar10/train", "cifar10/test"),
    )
    archives = (
        Archive(
            "cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            published=PUBLISHED,
            url=f"{SITE}/cifar-10-python.tar.gz",
            size=170_498_071,
        ),
    )


class Cifar100(Cifar):
    """60,000 colour photographs of 32x32 pixels in 100 fine classes (Krizhevsky, 2009).

    Reads `cifar-100-python/{train,test,meta}` under the data root or, where there is no such folder, lossless images
    of the same pixels from `cifar100/{train,test}/<class>/*`.
    """

    version = "1"
    classes = 100
    default_tasks = 10
    fingerprint = "sha256:5e18def89641df95f0298587801f490e1859fa952423ad8c860543f0ee922e59"
    name = "cifar100"
    folder = "cifar-100-python"
    meta = ("meta", "fine_label_names")
    splits = (("train",), ("test",), "fine_labels")
    layouts = (
        ("cifar-100-python/meta", "cifar-100-python/train", "cifar-100-python/test"),
        ("cifar100/train", "cifar100/test"),
    )
    archives = (
        Archive(
            "cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            published=PUBLISHED,
            url=f"{SITE}/cifar-100-python.tar.gz",
            size=169_001_437,
        ),
    )


class _Unpickler(pickle.Unpickler):
    """Unpickles arrays and plain values only: any other name in the file is refused before it is imported."""

    _allowed: ClassVar[dict[str, Any]] = {
        # Files written under numpy 1 and numpy 2 spell the module differently.
        "numpy.core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
        "numpy._core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
        "numpy.ndarray": np.ndarray,
        "numpy.dtype": np.dtype,
        # Python 3 writes bytes so at protocol 2, which the official archive uses.
        "_codecs.encode": codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs") from None


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
