from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fcilbench.data.folders import class_folders, class_tree, stratified_split
from fcilbench.errors import DataError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_lists_images_by_class_and_passes_over_the_rest(tmp_path: Path) -> None:
    touch(tmp_path, "n02/b.JPEG", "n02/a.png", "n01/x.jpg", "n01/Thumbs.db", "n01/._x.jpg", "README.txt", ".git/c.jpg")
    names, images = class_folders(tmp_path)
    assert names == ("n01", "n02")
    assert images.files == [tmp_path / "n01/x.jpg", tmp_path / "n02/a.png", tmp_path / "n02/b.JPEG"]
    assert images.labels.tolist() == [0, 1, 1]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read folder .*/none: No such file"):
        class_folders(tmp_path / "none")
    with pytest.raises(DataError, match="has no class folders"):
        class_folders(tmp_path)
    touch(tmp_path, "n01/a.txt")
    with pytest.raises(DataError, match=r"class folder .*/n01 has no image"):
        class_folders(tmp_path)


def test_tree_must_have_the_same_classes(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/1.png")
    with pytest.raises(DataError, match="different class folders: b is in one only"):
        class_tree(tmp_path / "train", tmp_path / "test")
    touch(tmp_path, "test/b/2.png")
    names, train, test = class_tree(tmp_path / "train", tmp_path / "test")
    assert names == ("a", "b")
    assert (len(train.files), len(test.files)) == (2, 2)


@pytest.mark.parametrize(
    ("sizes", "count", "quota"),
    [
        ([10, 5], 3, [2, 1]),  # shares 2 and 1
        ([3, 3, 4], 4, [1, 1, 2]),  # 1.2, 1.2, 1.6: the largest remainder gets the fourth
        ([4, 4], 3, [2, 1]),  # 1.5, 1.5: a tie goes to the lower label
        ([2, 98], 10, [1, 9]),  # 0.2 and 9.8: the small class keeps one
        ([2, 2, 2, 94], 5, [1, 1, 1, 2]),  # 0.1 three times: the large class pays
        ([2, 8], 8, [1, 7]),  # 1.6 and 6.4: nor does it lose its last training sample
        ([3000, 2500, 2000], 1500, [600, 500, 400]),  # three classes of EuroSAT
    ],
)
def test_quota_by_hand(sizes: list[int], count: int, quota: list[int]) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    content = [i.to_bytes(4, "big") for i in range(len(labels))]
    train, test = stratified_split(labels, content, count)
    assert np.bincount(labels[test]).tolist() == quota
    assert sorted([*train, *test]) == list(range(len(labels)))


def test_content_decides_not_the_order() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    content = [b"c", b"a", b"b", b"z", b"y", b"x"]
    assert stratified_split(labels, content, 2)[1].tolist() == [1, 5]
    shuffled = [5, 2, 0, 1, 4, 3]
    _, test = stratified_split(labels[shuffled], [content[i] for i in shuffled], 2)
    assert sorted(shuffled[i] for i in test) == [1, 5]


@pytest.mark.parametrize(("sizes", "count"), [([1, 9], 2), ([5, 5], 1), ([5, 5], 9)])
def test_no_class_is_left_without_samples(sizes: list[int], count: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    with pytest.raises(DataError, match=f"cannot give {count} test samples to all classes"):
        stratified_split(labels, [b""] * len(labels), count)
