from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.cars196 import Cars196

# The order of the kit is not that of the names, and one name has a slash.
NAMES = ["AM General Hummer SUV 2000", "BMW ActiveHybrid 5 Sedan 2012", "BMW 1 Series Coupe 2012", "Ram C/V Van 2012"]
SORTED = ("AM General Hummer SUV 2000", "BMW 1 Series Coupe 2012", "BMW ActiveHybrid 5 Sedan 2012", "Ram C-V Van 2012")
TRAIN = [(3, 10), (1, 20), (2, 30), (4, 40), (4, 50)]  # class of the kit, grey
TEST = [(2, 60), (1, 70), (3, 80), (4, 90)]


class Tiny(Cars196):
    classes, default_tasks, train_samples, test_samples = 4, 4, 5, 4


def annotations(rows: list[tuple[int, int]], *, labels: bool = True) -> Any:
    """The struct array of the kit: boxes, class (counted from 1) and file name."""
    boxes = [("bbox_x1", object), ("bbox_y1", object), ("bbox_x2", object), ("bbox_y2", object)]
    table = np.zeros((1, len(rows)), dtype=[*boxes, *([("class", object)] if labels else []), ("fname", object)])
    for i, (kind, _) in enumerate(rows):
        for box, _ in boxes:
            table[box][0, i] = np.uint16(30 + i)
        if labels:
            table["class"][0, i] = np.uint8(kind)
        table["fname"][0, i] = f"{i + 1:05}.jpg"
    return table


@pytest.fixture
def archive(tmp_path: Path, photo) -> Path:
    folder = tmp_path / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    for split, rows in (("cars_train", TRAIN), ("cars_test", TEST)):
        for i, (_, grey) in enumerate(rows):
            photo(folder / split / f"{i + 1:05}.jpg", grey, mode="L" if i == 1 else "RGB")
    names = np.empty((1, len(NAMES)), dtype=object)
    names[0, :] = NAMES
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": annotations(TRAIN)})
    savemat(folder / "devkit" / "cars_test_annos.mat", {"annotations": annotations(TEST, labels=False)})
    savemat(folder / "cars_test_annos_withlabels.mat", {"annotations": annotations(TEST)})
    return folder


@pytest.mark.parametrize("place", ["", "devkit"])
def test_reads_the_kit_and_numbers_by_name(archive: Path, greys, place: str) -> None:
    name = "cars_test_annos_withlabels.mat"
    (archive / name).rename(archive / place / name)
    corpus, _ = open_dataset(Tiny(), archive.parent)
    assert corpus.class_names == SORTED
    assert corpus.train.inputs.shape == (5, 224, 224, 3)
    assert greys(corpus.train) == [(0, 20), (1, 10), (2, 30), (3, 40), (3, 50)]
    assert greys(corpus.test) == [(0, 70), (1, 80), (2, 60), (3, 90)]


def test_the_usual_repack_gives_the_same_data(archive: Path, tmp_path: Path) -> None:
    for split, rows in (("train", TRAIN), ("test", TEST)):
        for i, (kind, _) in enumerate(rows):
            copy = tmp_path / "b" / "cars196" / split / NAMES[kind - 1].replace("/", "-") / f"{i + 1:05}.jpg"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((archive / f"cars_{split}" / f"{i + 1:05}.jpg").read_bytes())
    corpus, digest = open_dataset(Tiny(), tmp_path / "b")
    expected, same = open_dataset(Tiny(), archive.parent)
    assert digest == same
    assert corpus.class_names == expected.class_names
    assert np.array_equal(corpus.train.inputs, expected.train.inputs)


def test_public_11_one_folder_with_one_table_is_the_same_data(archive: Path, tmp_path: Path) -> None:
    """`car_ims/` and `cars_annos.mat`: path, class and test flag of all images, classes in the order of the kit."""
    rows = [("cars_train", i, kind, 0) for i, (kind, _) in enumerate(TRAIN)]
    rows += [("cars_test", i, kind, 1) for i, (kind, _) in enumerate(TEST)]
    table = np.zeros((1, len(rows)), dtype=[("relative_im_path", object), ("class", object), ("test", object)])
    folder = tmp_path / "b" / "car_ims"
    folder.mkdir(parents=True)
    for place, (split, i, kind, test) in enumerate(rows):
        (folder / f"{place:06}.jpg").write_bytes((archive / split / f"{i + 1:05}.jpg").read_bytes())
        table["relative_im_path"][0, place] = f"car_ims/{place:06}.jpg"
        table["class"][0, place], table["test"][0, place] = np.uint8(kind), np.uint8(test)
    names = np.empty((1, len(NAMES)), dtype=object)
    names[0, :] = NAMES
    savemat(tmp_path / "b" / "cars_annos.mat", {"annotations": table, "class_names": names})
    assert open_dataset(Tiny(), tmp_path / "b")[1] == open_dataset(Tiny(), archive.parent)[1]


def test_public_11_archives_in_a_folder_of_their_own_name(archive: Path) -> None:
    _, digest = open_dataset(Tiny(), archive.parent)
    for name in ("cars_train", "cars_test"):
        (archive / name).rename(archive / "moved")
        (archive / name).mkdir()
        (archive / "moved").rename(archive / name / name)
    assert open_dataset(Tiny(), archive.parent)[1] == digest


def test_annotations_without_labels_are_told_apart(archive: Path) -> None:
    savemat(archive / "cars_test_annos_withlabels.mat", {"annotations": annotations(TEST, labels=False)})
    with pytest.raises(DataError, match=r"has no class, only bbox_x1, .*fname: cars_test_annos_withlabels.mat is"):
        open_dataset(Tiny(), archive.parent)


@pytest.mark.parametrize("damage", ["truncated", "empty", "class", "name", "photo"])
def test_damaged_kit(archive: Path, damage: str) -> None:
    path = archive / "devkit" / "cars_train_annos.mat"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:200])
        reason = f"cars196: cannot read annotations from {path}: "
    elif damage == "empty":
        savemat(path, {"something": 1})
        reason = f"cars196: cannot read annotations from {path}: 'annotations'"
    elif damage == "class":
        savemat(path, {"annotations": annotations([(9, 10), *TRAIN[1:]])})
        reason = "has class 9, which cars_meta.mat has not"
    elif damage == "name":
        table = annotations(TRAIN)
        table["fname"][0, 0] = "../00001.jpg"
        savemat(path, {"annotations": table})
        reason = "names '../00001.jpg', which is no file name"
    else:
        (archive / "cars_train" / "00003.jpg").unlink()
        reason = r"cannot read .*/cars_train/00003\.jpg: No such file"
    with pytest.raises(DataError, match=reason):
        open_dataset(Tiny(), archive.parent)


def test_nothing_there_says_that_the_site_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cars196: not found: no ") as caught:
        open_dataset(Cars196(), tmp_path)
    hint = caught.value.hint or ""
    assert "its official site is gone" in hint
    for archive in Cars196.archives:
        assert archive.file in hint
        assert archive.url == ""
