"""CUB-200-2011: photographs of 200 bird species (Wah et al. 2011)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fcilbench.api import Archive, Corpus, DataError, ImageDataset, ImageFiles, Samples

_FOLDER = "CUB_200_2011"
_TABLES = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")


class Cub200(ImageDataset):
    """11,788 photographs of 200 bird species with the official split.

    Reads `CUB_200_2011/{images/,images.txt,image_class_labels.txt,train_test_split.txt,classes.txt}` (the official
    archive) or `cub200/{train,test}/<class>/*`. Class names are those of `classes.txt` (`001.Black_footed_Albatross`).
    The official split has 5,994 and 5,794 images. LAMDA-PILOT passes on another one of 9,430 and 2,358, which is
    refused here by its counts. No content digest is declared, since these files were never seen here.
    """

    version = "1"
    name = "cub200"
    classes = 200
    default_tasks = 10
    train_samples = 5_994
    test_samples = 5_794
    layouts = (("cub200/train", "cub200/test"), tuple(f"{_FOLDER}/{part}" for part in ("images", *_TABLES)))
    archives = (
        Archive(
            "CUB_200_2011.tgz",
            "md5:97eceeb196236b17998738112f37df78",
            published="CaltechDATA, record 65de6-vp158",
            url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
            size=1_150_585_339,
        ),
    )
    licence = "images belong to their photographers; for non-commercial research and education"
    homepage = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    citation = "Wah et al. (2011), The Caltech-UCSD Birds-200-2011 Dataset, CNS-TR-2011-001, Caltech"

    def official(self, paths: tuple[Path, ...]) -> Corpus:
        """Joins the four tables of the archive by their ids.

        Raises:
            DataError: If a table is damaged or they do not fit together.
        """
        folder = paths[0]
        names, images, labels, in_train = map(_table, paths[1:])
        number = {key: label for label, key in enumerate(sorted(names, key=names.__getitem__))}
        if not images.keys() == labels.keys() == in_train.keys():
            raise DataError(f"{folder.parent}: {', '.join(_TABLES[1:])} do not list the same images")
        if odd := sorted(set(labels.values()) - number.keys()):
            raise DataError(f"{folder.parent}: image_class_labels.txt has class {odd[0]}, which classes.txt has not")
        if above := [name for name in images.values() if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise DataError(f"{folder.parent / 'images.txt'} names {above[0]!r}, which is not below {folder}")
        if strange := sorted(set(in_train.values()) - {"0", "1"}):
            raise DataError(f"{folder.parent / 'train_test_split.txt'} has {strange[0]!r}, which is neither 1 nor 0")
        splits = []
        for flag in ("1", "0"):
            ids = [key for key in images if in_train[key] == flag]
            found = np.array([number[labels[key]] for key in ids], dtype=np.int64)
            splits.append(Samples(ImageFiles([folder / images[key] for key in ids]), found))
        return Corpus(splits[0], splits[1], tuple(sorted(names.values())))


def _table(path: Path) -> dict[str, str]:
    """Reads lines of an id and a value."""
    try:
        return dict(
            line.split(maxsplit=1) for line in map(str.strip, path.read_text(encoding="utf-8-sig").splitlines()) if line
        )
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read lines of an id and a value from {path}: {error}") from error
