"""Stanford Cars: photographs of 196 models of cars (Krause et al. 2013)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fcilbench.data.folders import Listed
from fcilbench.data.image_dataset import ImageDataset
from fcilbench.errors import DataError
from fcilbench.spec.archive import Archive

_FOLDER = "stanford_cars"
_LABELS = "cars_test_annos_withlabels.mat"
_PARTS = (f"{_FOLDER}/cars_train", f"{_FOLDER}/cars_test", f"{_FOLDER}/devkit")
_TFDS = "TensorFlow Datasets (url_checksums/cars196.txt)"


class Cars196(ImageDataset):
    """16,185 photographs of 196 models of cars with the official split.

    Reads `stanford_cars/{cars_train/,cars_test/,devkit/,cars_test_annos_withlabels.mat}` (the official archives, where
    torchvision expects them; the last file may lie in `devkit/` too) or the usual re-pack
    `cars196/{train,test}/<class>/*`. Classes are numbered by name, with `-` for the one `/` in them as the re-packs
    have it, so that both layouts give the same streams. The official split has 8,144 and 8,041 images. No content
    digest is declared, since these files were never seen here.
    """

    version = "1"
    name = "cars196"
    classes = 196
    default_tasks = (19, 19, 19, 19, 19, 19, 19, 19, 19, 25)
    train_samples = 8_144
    test_samples = 8_041
    layouts = (
        ("cars196/train", "cars196/test"),
        (*_PARTS, f"{_FOLDER}/{_LABELS}"),
        (*_PARTS, f"{_FOLDER}/devkit/{_LABELS}"),
    )
    archives = (
        Archive(
            "cars_train.tgz",
            "sha256:512b227b30e2f0a8aab9e09485786ab4479582073a144998da74d64b801fd288",
            published=_TFDS,
            size=979_269_282,
            folder=_FOLDER,
        ),
        Archive(
            "cars_test.tgz",
            "sha256:bffea656d6f425cba3c91c6d83336e4c5f86c6cffd8975b0f375d3a10da8e243",
            published=_TFDS,
            size=977_350_468,
            folder=_FOLDER,
        ),
        Archive(
            "car_devkit.tgz",
            "sha256:b97deb463af7d58b6bfaa18b2a4de9829f0f79e8ce663dfa9261bf7810e9accd",
            published=_TFDS,
            size=330_960,
            folder=_FOLDER,
        ),
        Archive(
            _LABELS,
            "sha256:790f75be8ea34eeded134cc559332baf23e30e91367e9ddca97d26ed9b895f05",
            published=_TFDS,
            size=185_758,
            folder=_FOLDER,
        ),
    )
    by_hand = "its official site is gone (https://github.com/pytorch/vision/issues/7545 names copies):"
    licence = "no formal licence; for non-commercial research"
    homepage = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html"
    citation = "Krause et al. (2013), 3D Object Representations for Fine-Grained Categorization, ICCV Workshops"

    def official(self, paths: tuple[Path, ...]) -> tuple[tuple[str, ...], Listed, Listed]:
        """Reads the annotations of the development kit.

        Raises:
            DataError: If a file of it is missing, damaged, or not of the official format.
        """
        train, test, devkit, test_annotations = paths
        meta = devkit / "cars_meta.mat"
        names = [str(name).replace("/", "-") for name in np.atleast_1d(_read(meta, "class_names"))]
        order = sorted(range(len(names)), key=names.__getitem__)
        number = {old + 1: label for label, old in enumerate(order)}  # the kit counts from 1
        splits = (_split(train, devkit / "cars_train_annos.mat", number), _split(test, test_annotations, number))
        return tuple(names[old] for old in order), *splits


def _split(folder: Path, annotations: Path, number: dict[int, int]) -> Listed:
    table = np.atleast_1d(_read(annotations, "annotations"))
    fields = table.dtype.names or ()
    if not {"fname", "class"} <= set(fields):
        raise DataError(f"{annotations} has no classes, only {', '.join(fields)}: {_LABELS} is the one with labels")
    names, classes = [str(name) for name in table["fname"]], [int(label) for label in table["class"]]
    if odd := [name for name in names if Path(name).name != name]:
        raise DataError(f"{annotations} names {odd[0]!r}, which is no file name")
    if unknown := sorted(set(classes) - number.keys()):
        raise DataError(f"{annotations} has class {unknown[0]}, which cars_meta.mat has not")
    return Listed([folder / name for name in names], np.array([number[c] for c in classes], dtype=np.int64))


def _read(path: Path, key: str) -> Any:
    from scipy.io import loadmat

    try:
        return loadmat(path, squeeze_me=True)[key]
    except Exception as error:  # a damaged file raises whatever its reader trips over
        raise DataError(f"cannot read {key} from {path}: {' '.join(str(error).split())}") from error
