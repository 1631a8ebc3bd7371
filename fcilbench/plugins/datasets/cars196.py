"""Stanford Cars: photographs of 196 models of cars (Krause et al. 2013)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fcilbench.api import Archive, Corpus, DataError, ImageDataset, ImageFiles, Samples

_FOLDER = "stanford_cars"
_LABELS = "cars_test_annos_withlabels.mat"
_PARTS = (f"{_FOLDER}/cars_train", f"{_FOLDER}/cars_test", f"{_FOLDER}/devkit")
_ONE = ("car_ims", "cars_annos.mat")


class Cars196(ImageDataset):
    """16,185 photographs of 196 models of cars with the official split.

    Reads `stanford_cars/{cars_train/,cars_test/,devkit/,cars_test_annos_withlabels.mat}` (the official archives, where
    torchvision expects them; the last file may lie in `devkit/` too), `car_ims/` with `cars_annos.mat` (the other
    official archive, here or below `stanford_cars/`), or the usual re-pack `cars196/{train,test}/<class>/*`. Classes
    are numbered by name, with `-` for the one `/` in them as the re-packs have it, so that all layouts give the same
    streams. The official split has 8,144 and 8,041 images. No content digest is declared, since these files were never
    seen here.
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
        tuple(f"{_FOLDER}/{part}" for part in _ONE),
        _ONE,
    )
    archives = tuple(
        Archive(file, f"sha256:{digest}", "TensorFlow Datasets (url_checksums/cars196.txt)", size=size, folder=_FOLDER)
        for file, size, digest in (
            ("cars_train.tgz", 979_269_282, "512b227b30e2f0a8aab9e09485786ab4479582073a144998da74d64b801fd288"),
            ("cars_test.tgz", 977_350_468, "bffea656d6f425cba3c91c6d83336e4c5f86c6cffd8975b0f375d3a10da8e243"),
            ("car_devkit.tgz", 330_960, "b97deb463af7d58b6bfaa18b2a4de9829f0f79e8ce663dfa9261bf7810e9accd"),
            (_LABELS, 185_758, "790f75be8ea34eeded134cc559332baf23e30e91367e9ddca97d26ed9b895f05"),
        )
    )
    by_hand = "its official site is gone (https://github.com/pytorch/vision/issues/7545 names copies):"
    licence = "no formal licence; for non-commercial research"
    homepage = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html"
    citation = "Krause et al. (2013), 3D Object Representations for Fine-Grained Categorization, ICCV Workshops"

    def official(self, paths: tuple[Path, ...]) -> Corpus:
        """Reads the annotations of the development kit, or the one table of `car_ims`.

        Raises:
            DataError: If a file of it is missing, damaged, or not of the official format.
        """
        meta = paths[1] if len(paths) == 2 else paths[2] / "cars_meta.mat"
        names = [str(name).replace("/", "-") for name in np.atleast_1d(_read(meta, "class_names"))]
        order = sorted(range(len(names)), key=names.__getitem__)
        number = {old + 1: label for label, old in enumerate(order)}  # the kit counts from 1
        if len(paths) == 2:
            train, test = (_split(*paths, number, flag) for flag in (0, 1))
        else:
            train = _split(paths[0], paths[2] / "cars_train_annos.mat", number)
            test = _split(paths[1], paths[3], number)
        return Corpus(train, test, tuple(names[old] for old in order))


def _split(folder: Path, annotations: Path, number: dict[int, int], test: int | None = None) -> Samples:
    """Lists the images of a table, or those of them whose test flag is `test`."""
    table = np.atleast_1d(_read(annotations, "annotations"))
    wanted = ["fname", "class"] if test is None else ["relative_im_path", "class", "test"]
    fields = table.dtype.names or ()
    if missing := set(wanted) - set(fields):
        has = f"no {', '.join(sorted(missing))}, only {', '.join(fields)}"
        raise DataError(f"{annotations} has {has}: {_LABELS} is the one with labels")
    rows = table if test is None else table[table["test"].astype(int) == test]
    names = [str(name).removeprefix("car_ims/") for name in rows[wanted[0]]]
    if odd := [name for name in names if Path(name).name != name]:
        raise DataError(f"{annotations} names {odd[0]!r}, which is no file name")
    classes = [int(label) for label in rows["class"]]
    if unknown := sorted(set(classes) - number.keys()):
        raise DataError(f"{annotations} has class {unknown[0]}, which cars_meta.mat has not")
    labels = np.array([number[label] for label in classes], dtype=np.int64)
    return Samples(ImageFiles([folder / name for name in names]), labels)


def _read(path: Path, key: str) -> Any:
    from scipy.io import loadmat

    try:
        return loadmat(path, squeeze_me=True)[key]
    except Exception as error:  # a damaged file raises whatever its reader trips over
        raise DataError(f"cannot read {key} from {path}: {' '.join(str(error).split())}") from error
