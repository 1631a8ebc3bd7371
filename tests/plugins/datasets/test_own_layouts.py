"""The usual layouts of image folders: which one was taken, and that no image is lost in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.own import ImageFolder

SHARED = "no test set is named: test_share 0.2 of each class, by content, is the test set"


def folder(path: Path, **params) -> ImageFolder:
    return ImageFolder(ImageFolder.Params(path=str(path), size=8, **params))


@pytest.fixture
def classes(photo):
    """Returns `classes(folder, count, names)`: images of different greys in class folders."""
    grey = iter(range(10_000))

    def write(path: Path, count: int = 6, names: str = "abc") -> Path:
        for name in names:
            for i in range(count):
                photo(path / name / f"{i}.png", next(grey) % 250, (9, 8 + next(grey) % 40))
        return path

    return write


def read(path: Path, **params) -> tuple:
    dataset = folder(path, **params)
    facts = dataset.instance_facts()
    return facts["reading"], dataset.classes, facts["train"], facts["test"], facts["remarks"]


class TestLayouts:
    def test_class_folders_alone(self, tmp_path: Path, classes) -> None:
        assert read(classes(tmp_path)) == (
            "<class>/*",
            *(3, 14, 4),
            [SHARED, "1 of 3 classes with fewer than 5 training samples: 'a' 4"],
        )

    def test_the_default_share_gives_each_class_a_test_image(self, tmp_path: Path, classes) -> None:
        corpus, _ = open_dataset(folder(classes(tmp_path, 2)), tmp_path)
        assert np.bincount(corpus.test.labels).tolist() == [1, 1, 1]
        assert corpus.remarks[0] == SHARED

    @pytest.mark.parametrize("names", [("train", "test"), ("Train", "TEST"), ("training", "testing")])
    def test_train_and_test(self, tmp_path: Path, classes, names: tuple[str, str]) -> None:
        for name in names:
            classes(tmp_path / name)
        assert read(tmp_path) == (f"{names[0]}/<class>/* and {names[1]}/<class>/*", 3, 18, 18, [])

    def test_train_val_and_test_says_that_val_is_not_read(self, tmp_path: Path, classes) -> None:
        for name in ("train", "valid", "test"):
            classes(tmp_path / name)
        assert read(tmp_path)[4] == ["not read: valid/ (18 images)"]

    def test_val_is_the_test_set_where_there_is_no_other(self, tmp_path: Path, classes) -> None:
        for name in ("train", "val"):
            classes(tmp_path / name)
        assert read(tmp_path) == ("train/<class>/* and val/<class>/*", 3, 18, 18, ["val/ is the test set"])

    def test_train_alone_is_split(self, tmp_path: Path, classes) -> None:
        classes(tmp_path / "train", 10)
        assert read(tmp_path) == ("train/<class>/*", 3, 24, 6, [SHARED])
        assert read(tmp_path, test_share=0.5) == ("train/<class>/*", 3, 15, 15, [])

    def test_in_a_folder_of_its_own(self, tmp_path: Path, classes) -> None:
        for name in ("train", "test"):
            classes(tmp_path / "one" / "pets" / "pets" / name)
        classes(tmp_path / "two" / "pets")
        (tmp_path / "one" / "pets" / "__MACOSX").mkdir()
        assert read(tmp_path / "one")[:2] == ("pets/pets/train/<class>/* and pets/pets/test/<class>/*", 3)
        assert read(tmp_path / "two")[:2] == ("pets/<class>/*", 3)

    def test_a_class_that_is_called_train(self, tmp_path: Path, photo) -> None:
        for name in ("bus", "train"):
            for i in range(10):
                photo(tmp_path / name / f"{i}.png", 20 * i, (9, 8 + len(name)))
        assert read(tmp_path) == ("<class>/*", 2, 16, 4, [SHARED])

    def test_tiny_imagenet(self, tmp_path: Path, photo) -> None:
        for number in range(10):
            for wnid in ("n01443537", "n01629819"):
                image = f"{wnid}_{number}.JPEG"
                photo(tmp_path / "train" / wnid / "images" / image, 20 * number, (64, 64 + int(wnid[-1])))
        for wnid in ("n01443537", "n01629819"):
            (tmp_path / "train" / wnid / f"{wnid}_boxes.txt").write_text("n01443537_0.JPEG\t0\t10\t63\t58\n")
        lines = []
        for number in range(4):
            photo(tmp_path / "val" / "images" / f"val_{number}.JPEG", 60 * number, (64, 64))
            lines.append(f"val_{number}.JPEG\t{('n01629819', 'n01443537')[number % 2]}\t0\t32\t44\t62\n")
        (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
        photo(tmp_path / "test" / "images" / "test_0.JPEG", 1, (64, 64))
        (tmp_path / "words.txt").write_text("n01443537\tgoldfish\n")
        assert read(tmp_path) == (
            "train/<class>/*/* and val/ by val_annotations.txt",
            *(2, 20, 4),
            [
                "val/ is the test set",
                "not read: test/ (1 image)",
                "passed over in class folders, since they are no images: 2 .txt",
            ],
        )
        corpus, _ = open_dataset(folder(tmp_path), tmp_path)
        pairs = zip(corpus.test.labels.tolist(), corpus.test.inputs[:, 4, 4, 0].tolist(), strict=True)
        assert sorted(pairs) == [(0, 60), (0, 180), (1, 0), (1, 120)]
        (tmp_path / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\n")
        with pytest.raises(DataError, match=r"val_annotations.txt:1: no class of this name"):
            folder(tmp_path)


class TestNothingIsLost:
    def test_images_one_folder_deeper_are_read_and_told(self, tmp_path: Path, classes, photo) -> None:
        for name in ("train", "test"):
            classes(tmp_path / name)
        photo(tmp_path / "train" / "a" / "sub" / "9.png", 255)
        (tmp_path / "train" / "a" / ".DS_Store").write_text("")
        (tmp_path / "train" / "b" / "x.heic").write_text("")
        photo(tmp_path / "loose.png", 1)
        (tmp_path / "docs").mkdir()
        assert read(tmp_path) == (
            "train/<class>/* and test/<class>/*",
            *(3, 19, 18),
            [
                "not read: docs/ (0 images), 1 image beside the folders",
                "images in folders below their class folder are read as of that class: 'a' has sub/",
                "passed over in class folders, since they are no images: 1 .heic",
            ],
        )

    def test_a_new_image_in_a_folder_below_makes_another_identity(self, tmp_path: Path, classes, photo) -> None:
        classes(tmp_path)
        for name in "abc":
            (tmp_path / name).rename(tmp_path / "was")
            shutil.move(tmp_path / "was", tmp_path / name / "images")
        dataset = folder(tmp_path)
        assert {tmp_path, tmp_path / "a", tmp_path / "a" / "images"} <= {*dataset.files()}
        photo(tmp_path / "a" / "new.png", 3)
        assert folder(tmp_path).identity() != dataset.identity()

    def test_samples_in_both_parts_and_under_two_labels(self, tmp_path: Path, classes, photo) -> None:
        for name in ("train", "test"):
            classes(tmp_path / name)
        for place in ("train/a", "test/a", "test/b"):
            photo(tmp_path / place / "same.png", 251)
        assert read(tmp_path)[4] == [
            "2 of 20 test samples also in the training set",
            "1 sample under more than one label",
        ]

    @pytest.mark.parametrize("other", ["a ", "a\u00a0"])
    def test_class_folders_that_look_the_same(self, tmp_path: Path, classes, other: str) -> None:
        classes(tmp_path)
        (tmp_path / "b").rename(tmp_path / other)
        with pytest.raises(DataError, match=r"the names of class folders 'a' and 'a.* look the same"):
            folder(tmp_path)

    def test_class_folders_of_the_two_parts(self, tmp_path: Path, classes) -> None:
        for name in ("train", "test"):
            classes(tmp_path / name)
        (tmp_path / "test" / "c").rename(tmp_path / "test" / "C")
        with pytest.raises(DataError, match=r"/train/c and .*/test/C differ in how they are written: 'c' and 'C'"):
            folder(tmp_path)
        shutil.rmtree(tmp_path / "test" / "C")
        with pytest.raises(DataError, match=rf"class 'c' has no test images: no folder {tmp_path}/test/c") as caught:
            folder(tmp_path)
        assert caught.value.hint.startswith("add test images of each class")

    @pytest.mark.parametrize("share", [None, 0.4])
    def test_a_class_with_one_sample_is_named(self, tmp_path: Path, classes, share: float | None) -> None:
        classes(tmp_path)
        classes(tmp_path, 1, "z")
        with pytest.raises(DataError, match="test samples to all classes: 'z' has one sample") as caught:
            open_dataset(folder(tmp_path, test_share=share), tmp_path)
        assert caught.value.hint == "add samples of the class, or leave it out: no test_share helps"

    def test_a_class_without_images_says_what_is_there(self, tmp_path: Path, classes) -> None:
        classes(tmp_path)
        (tmp_path / "z").mkdir()
        (tmp_path / "z" / "x.heic").write_text("")
        with pytest.raises(DataError, match=r"class folder .*/z has no image; it has 1 .heic") as caught:
            folder(tmp_path)
        assert "images end in .bmp, .gif" in caught.value.hint


class TestImages:
    def test_an_orientation_tag_turns_the_image(self, tmp_path: Path, classes) -> None:
        classes(tmp_path / "train")
        classes(tmp_path / "test")
        pixels = np.zeros((8, 8, 3), dtype=np.uint8)
        pixels[:, :4] = 255  # the left half is white; tag 6 says that it is the top
        image, tag = Image.fromarray(pixels), Image.Exif()
        tag[0x0112] = 6
        for old in (tmp_path / "train" / "a").iterdir():
            old.unlink()
        image.save(tmp_path / "train" / "a" / "x.jpg", exif=tag, quality=95)
        corpus, _ = open_dataset(folder(tmp_path), tmp_path)
        (found,) = corpus.train.inputs[corpus.train.labels == 0]
        assert found[:4].min() > 200
        assert found[4:].max() < 50

    def test_a_broken_image_is_the_users_own(self, tmp_path: Path, classes) -> None:
        classes(tmp_path)
        (tmp_path / "b" / "2.png").write_bytes(b"no image")
        with pytest.raises(DataError, match=rf"broken image {tmp_path}/b/2.png: cannot identify") as caught:
            open_dataset(folder(tmp_path), tmp_path)
        assert caught.value.hint == "this file is your own: put a sound copy in its place, or remove it from the folder"
