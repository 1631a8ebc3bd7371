"""ISIC 2019: dermatoscopic images of skin lesions in eight diagnoses."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fcilbench.api import Corpus, DataError, ImageDataset, ImageFiles, Samples

DIAGNOSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
"""Melanoma, nevus, basal cell carcinoma, actinic keratosis, benign keratosis, dermatofibroma, vascular lesion, squamous
cell carcinoma."""

_FILES = tuple(f"ISIC_2019_Training_{part}" for part in ("Input", "GroundTruth.csv", "Metadata.csv"))


class Isic2019(ImageDataset):
    """25,331 dermatoscopic images in 8 diagnoses of very unequal frequency: 12,875 nevi and 239 dermatofibromas.

    Reads `ISIC_2019_Training_Input/*.jpg`, `ISIC_2019_Training_GroundTruth.csv` and `ISIC_2019_Training_Metadata.csv`,
    also below `isic2019/`, or `isic2019/{train,test}/<class>/*`. The labels of the official test images came later and
    have a ninth class, so the field splits the training images. Ours is 80/20 of each diagnosis and keeps all images of
    a lesion (`lesion_id`) on one side: many lesions were photographed several times, and a split by image would test on
    lesions that were trained on. It follows from the ids alone. An image's shorter side becomes 256/224 of the size,
    and its centre is cropped. No content digest is declared, since these files were never seen here.
    """

    version = "1"
    name = "isic2019"
    classes = 8
    default_tasks = 4
    train_samples = 20_265
    test_samples = 5_066
    layouts = (
        ("isic2019/train", "isic2019/test"),
        tuple(f"isic2019/{file}" for file in _FILES),
        _FILES,
    )
    by_hand = (
        "the ISIC archive publishes no checksums: get the three files ISIC_2019_Training_* from "
        "https://challenge.isic-archive.com/data/#2019 and unpack them into"
    )
    licence = "CC BY-NC 4.0"
    homepage = "https://challenge.isic-archive.com/data/#2019"
    citation = "Tschandl et al. (2018), HAM10000; Codella et al. (2017), ISBI 2017; Combalia et al. (2019), BCN20000"

    def official(self, paths: tuple[Path, ...]) -> Corpus:
        """Lists the labelled images, and splits off a test set by lesion."""
        folder, truth, metadata = paths
        labels = {row["image"]: _diagnosis(row, truth) for row in _rows(truth, ("image", *DIAGNOSES))}
        lesions = {row["image"]: row["lesion_id"] for row in _rows(metadata, ("image", "lesion_id"))}
        images = sorted(labels)
        if missing := next((image for image in images if not (folder / f"{image}.jpg").is_file()), None):
            raise DataError(f"cannot read {folder / missing}.jpg: {truth} names it")
        test = split_by_group({image: lesions.get(image) or image for image in images}, labels, self.test_samples)
        parts = [[image for image in images if (image in test) == wanted] for wanted in (False, True)]
        train, held_out = (self._samples(folder, part, labels) for part in parts)
        return Corpus(train, held_out, DIAGNOSES)

    def _hint(self, root: Path) -> str:
        return f"{self.by_hand} {root / 'isic2019'}; another data root is set by --data or FCILBENCH_DATA"

    @staticmethod
    def _samples(folder: Path, images: Sequence[str], labels: Mapping[str, int]) -> Samples:
        files = [folder / f"{image}.jpg" for image in images]
        return Samples(ImageFiles(files), np.array([labels[image] for image in images], dtype=np.int64))


def split_by_group(groups: Mapping[str, str], labels: Mapping[str, int], count: int) -> set[str]:
    """Returns the names of `count` samples for the test set, the same share of each label, no group on both sides.

    A group whose samples have several labels counts for that of its first one. Within a label, groups come in the order
    of the SHA-256 of their id; one that is larger than what is still missing is passed over. Shares are rounded by
    largest remainder.

    Raises:
        DataError: If no choice of groups in this order gives the count.
    """
    members: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    label_of: dict[str, int] = {}
    for name, group in groups.items():
        members[label_of.setdefault(group, labels[name])][group].append(name)
    sizes = {label: sum(map(len, own.values())) for label, own in members.items()}
    shares = {label: size * count / len(groups) for label, size in sizes.items()}
    quota = {label: int(share) for label, share in shares.items()}
    for label in sorted(shares, key=lambda each: (quota[each] - shares[each], each))[: count - sum(quota.values())]:
        quota[label] += 1
    test: set[str] = set()
    for label, own in members.items():
        left = quota[label]
        for group in sorted(own, key=lambda each: hashlib.sha256(each.encode()).digest()):
            if len(own[group]) <= left:
                test |= set(own[group])
                left -= len(own[group])
        if left:
            raise DataError(f"the groups of label {label} cannot give {quota[label]} test samples: {left} are missing")
    return test


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Returns the rows of a table with a header, as text."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        if lacking := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise DataError(f"{path} has no column {lacking[0]!r}")
        return list(reader)


def _diagnosis(row: Mapping[str, str], path: Path) -> int:
    """Returns the label whose column is 1."""
    ones = [label for label, name in enumerate(DIAGNOSES) if row[name] and float(row[name]) == 1.0]
    if len(ones) != 1:
        raise DataError(f"{path}: image {row['image']} has {len(ones)} of the {len(DIAGNOSES)} diagnoses, not one")
    return ones[0]
