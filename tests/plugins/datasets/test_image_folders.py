"""ImageNet-R, ImageNet-A and EuroSAT: class folders without a split, in small archives of the official layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fcilbench.api.dataset import Augmentation
from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.eurosat import EuroSat
from fcilbench.plugins.datasets.imagenet import ImageNetA, ImageNetR


class TinyR(ImageNetR):
    classes, train_samples, test_samples = 3, 8, 4


class TinyA(ImageNetA):
    classes, train_samples, test_samples = 2, 5, 2


class TinySat(EuroSat):
    classes, train_samples, test_samples, fingerprint = 2, 8, 2, ""


def archive_r(root: Path, photo) -> None:
    """As `imagenet-r.tar` unpacks: WordNet ids, a README, and images that are not all plain RGB JPEGs."""
    folder = root / "imagenet-r"
    kinds = {"L": "jpg", "CMYK": "jpg", "P": "png", "LA": "png", "RGBA": "png", "RGB": "jpg"}
    for label, wnid in enumerate(("n01443537", "n01484850", "n01494475")):
        for i, (mode, suffix) in enumerate(list(kinds.items())[label * 2 : label * 2 + 2]):
            photo(folder / wnid / f"art_{i}.{suffix}", 10 * (4 * label + i + 1), mode=mode)
            photo(folder / wnid / f"toy_{i}.jpg", 10 * (4 * label + i + 3), (31, 57))
    (folder / "README.txt").write_text("n01443537 goldfish\n")


def test_imagenet_r_reads_every_kind_of_image(tmp_path: Path, photo, greys) -> None:
    archive_r(tmp_path, photo)
    corpus, digest = open_dataset(TinyR(), tmp_path)
    assert digest.startswith("sha256:")
    assert corpus.class_names == ("n01443537", "n01484850", "n01494475")
    assert corpus.train.inputs.shape == (8, 224, 224, 3)
    assert corpus.train.inputs.dtype == np.uint8
    assert sorted(greys(corpus.train) + greys(corpus.test)) == [(i // 4, 10 * (i + 1)) for i in range(12)]
    # 4 of 12 are 1 1/3 of each class: one each, and the fourth to the lowest label.
    assert np.bincount(corpus.test.labels).tolist() == [2, 1, 1]


def test_names_of_files_and_the_size_do_not_change_the_split(tmp_path: Path, photo, greys) -> None:
    archive_r(tmp_path, photo)
    one, digest = open_dataset(TinyR(TinyR.Params(size=16)), tmp_path)
    for i, path in enumerate(sorted((tmp_path / "imagenet-r" / "n01443537").iterdir())):
        path.rename(path.with_name(f"{9 - i}{path.suffix}"))
    two, again = open_dataset(TinyR(TinyR.Params(size=24)), tmp_path)
    assert again == digest
    assert greys(one.test) == greys(two.test)
    assert two.test.labels.tolist() == one.test.labels.tolist()


def test_the_tree_keeps_the_split_that_it_has(tmp_path: Path, photo, greys) -> None:
    for split, count in (("train", 5), ("test", 2)):
        for i in range(count):
            photo(
                tmp_path / "imagenet-a" / split / f"n0{i % 2}" / f"{i}.jpg", 10 * i + (0 if split == "train" else 100)
            )
    corpus, _ = open_dataset(TinyA(), tmp_path)
    assert greys(corpus.train) == [(0, 0), (0, 20), (0, 40), (1, 10), (1, 30)]
    assert greys(corpus.test) == [(0, 100), (1, 110)]


@pytest.mark.parametrize("folder", ["EuroSAT_RGB", "eurosat/EuroSAT_RGB", "2750", "eurosat/2750"])
def test_eurosat_keeps_its_pixels(tmp_path: Path, photo, folder: str) -> None:
    for label in range(2):
        for i in range(5):
            photo(tmp_path / folder / f"Class{label}" / f"{i}.jpg", 40 * label + 10 * i, (64, 64))
    corpus, _ = open_dataset(TinySat(), tmp_path)
    assert corpus.train.inputs.shape == (8, 64, 64, 3)
    assert np.bincount(corpus.test.labels).tolist() == [1, 1]
    assert TinySat().augmentation == Augmentation(crop_padding=8, flip=True)
    assert TinySat(TinySat.Params(size=32)).augmentation == Augmentation(crop_padding=4, flip=True)


@pytest.mark.parametrize("damage", ["missing", "truncated", "class"])
def test_incomplete_archive(tmp_path: Path, photo, damage: str) -> None:
    archive_r(tmp_path, photo)
    path = tmp_path / "imagenet-r" / "n01443537" / "toy_0.jpg"
    if damage == "missing":
        path.unlink()
        reason = "imagenet-r: 11 images, expected 12"
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:300])
        reason = f"broken image {path}: "
    else:
        for each in path.parent.iterdir():
            each.unlink()
        reason = f"imagenet-r: class folder {path.parent} has no image"
    with pytest.raises(DataError, match=reason):
        open_dataset(TinyR(), tmp_path)


@pytest.mark.parametrize("plugin", [ImageNetR, ImageNetA, EuroSat])
def test_nothing_there(tmp_path: Path, plugin) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(plugin(), tmp_path)
    archive = plugin.archives[0]
    assert str(caught.value).startswith(f"{plugin.name}: not found: no {tmp_path}/{plugin.name}/train and ")
    hint = caught.value.hint or ""
    assert f"run `fcilbench data fetch {plugin.name}`; or put {archive.file} ({archive.checksum}) into" in hint
    assert f"{tmp_path}/archives" in hint
    assert "FCILBENCH_DATA" in hint
