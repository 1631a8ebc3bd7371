"""CIFAR-100 from the unpacked `cifar-100-python` archive."""

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

FOLDER = "cifar-100-python"
ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
ARCHIVE_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"


class Cifar100(Dataset):
    """60,000 colour photographs of 32x32 pixels in 100 fine classes (Krizhevsky, 2009).

    Reads `cifar-100-python/{train,test,meta}` under the data root or, where there is no such folder, lossless images
    of the same pixels from `cifar100/{train,test}/<class>/*`. Augmentation is the usual one of the field: zero
    padding of 4, random crop, random horizontal flip (He et al. 2016, section 4.2).
    """

    version = "1"
    classes = 100
    default_tasks = 10
    train_samples = 50_000
    test_samples = 10_000
    fingerprint = "sha256:5e18def89641df95f0298587801f490e1859fa952423ad8c860543f0ee922e59"
    cached = True
    layouts = ((f"{FOLDER}/meta", f"{FOLDER}/train", f"{FOLDER}/test"), ("cifar100/train", "cifar100/test"))
    archives = (
        Archive(
            ARCHIVE.rpartition("/")[2],
            f"md5:{ARCHIVE_MD5}",
            published="the University of Toronto and torchvision (datasets/cifar.py)",
            url=ARCHIVE,
            size=169_001_437,
        ),
    )
    augmentation = Augmentation(crop_padding=4, flip=True)
    licence = "no formal licence; free for research with attribution"
    homepage = "https://www.cs.toronto.edu/~kriz/cifar.html"
    citation = "Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images, technical report, Toronto"

    def load(self, root: Path) -> Corpus:
        """Reads both splits with their fine labels; inputs are uint8 `[n, 32, 32, 3]`, RGB.

        Raises:
            DataError: If a file is missing, truncated or not of the official format. Counts and content are compared
                with the official ones by whoever opens the data set.
        """
        folder, tree = root / FOLDER, (root / "cifar100" / "train", root / "cifar100" / "test")
        if not folder.exists() and all(path.exists() for path in tree):
            found = sized_images(class_tree(*tree), 32)
            # Decoded here, so that they are numbered by their pixels like the official archive.
            return Corpus(decoded_images(found.train), decoded_images(found.test), found.class_names)
        (names,) = _read(folder / "meta", "fine_label_names")
        return Corpus(_split(folder / "train"), _split(folder / "test"), tuple(map(_text, names)))


def _split(path: Path) -> Samples:
    """Reads one split: rows of 3,072 bytes (red, green and blue planes of 32x32) and a list of fine labels."""
    rows, labels = _read(path, "data", "fine_labels")
    try:
        images = np.asarray(rows).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return Samples(np.ascontiguousarray(images), np.array(labels, dtype=np.int64))
    except (DataError, TypeError, ValueError) as error:
        raise _error(path, f"is not of the official format: {error}") from error


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
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-100 file needs") from None


def _read(path: Path, *keys: str) -> list[Any]:
    """Returns the values of some keys of a pickled dictionary."""
    try:
        with path.open("rb") as file:
            record = {_text(key): value for key, value in _Unpickler(file, encoding="bytes").load().items()}
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise _error(path, f"truncated or damaged: {error or type(error).__name__}") from error
    if missing := [key for key in keys if key not in record]:
        raise _error(path, f"has no entry {missing[0]!r}, only {sorted(record)}")
    return [record[key] for key in keys]


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _error(path: Path, what: str) -> DataError:
    return DataError(
        f"cifar100: {path}: {what}",
        hint=f"unpack {ARCHIVE} (MD5 {ARCHIVE_MD5}) so that {path.parent} holds train, test and meta; "
        "another data root is set by --data or FCILBENCH_DATA",
    )
