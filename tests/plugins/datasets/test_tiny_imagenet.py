"""Tiny ImageNet's official layout in small, and with all classes and one image behind all names."""

import os

import pytest

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.tiny_imagenet import TinyImageNet


class Tiny(TinyImageNet):
    classes, default_tasks, train_samples, test_samples = 2, 2, 3, 2


@pytest.fixture
def archive(tmp_path, photo):
    folder = tmp_path / "tiny-imagenet-200"
    for place, grey in (("n02/images/n02_0", 10), ("n01/images/n01_0", 20), ("n01/images/n01_1", 30)):
        photo(folder / "train" / f"{place}.JPEG", grey)
    (folder / "train" / "n01" / "n01_boxes.txt").write_text("n01_0.JPEG\t0\t0\t62\t62\n")
    for name, grey in (("val_0", 40), ("val_1", 50)):
        photo(folder / "val" / "images" / f"{name}.JPEG", grey)
    lines = ["val_0.JPEG\tn02\t0\t32\t44\t62", "val_1.JPEG\tn01\t52\t55\t57\t59"]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    photo(folder / "test" / "images" / "test_0.JPEG", 60)
    return folder


def test_reads_the_official_layout(archive, greys):
    corpus, _ = open_dataset(Tiny(), archive.parent)
    assert corpus.class_names == ("n01", "n02")
    assert corpus.train.inputs.shape == (3, 64, 64, 3)
    assert greys(corpus.train) == [(0, 20), (0, 30), (1, 10)]
    assert greys(corpus.test) == [(0, 50), (1, 40)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("val_0.JPEG\tn03\t0\t0\t1\t1", r"val_annotations.txt:1: .* is not a file with the WordNet id"),
        ("val_0.JPEG", r"val_annotations.txt:1: "),
        ("../val_0.JPEG\tn01", r"val_annotations.txt:1: "),
        ("gone.JPEG\tn01", r"cannot read .*/val/images/gone.JPEG: .*val_annotations.txt names it"),
    ],
)
def test_damaged_annotations(archive, line, reason):
    (archive / "val" / "val_annotations.txt").write_text(f"{line}\nval_1.JPEG\tn01\n")
    with pytest.raises(DataError, match=f"tiny-imagenet: {reason}|tiny-imagenet: .*{reason}"):
        open_dataset(Tiny(), archive.parent)


def test_all_classes_are_listed_with_a_tenth_of_the_declared_counts(tmp_path, photo):
    """200 classes of 50 images and 1,000 of the validation set, all hard links to one file."""
    folder = tmp_path / "tiny-imagenet-200"
    photo(tmp_path / "one.JPEG", 7)
    names = [f"n{number:08}" for number in range(200)]
    for name in names:
        (folder / "train" / name / "images").mkdir(parents=True)
        for number in range(50):
            os.link(tmp_path / "one.JPEG", folder / "train" / name / "images" / f"{name}_{number}.JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number in range(1000):
        os.link(tmp_path / "one.JPEG", folder / "val" / "images" / f"val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{names[number % 200]}\t0\t0\t63\t63")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines))
    found = TinyImageNet().load(tmp_path)
    assert (10 * len(found.train), 10 * len(found.test)) == (TinyImageNet.train_samples, TinyImageNet.test_samples)
    assert len(found.class_names) == TinyImageNet.classes
    assert set(found.train.labels[:51].tolist()) == {0, 1}
    assert found.test.labels[:3].tolist() == [0, 1, 2]
