from __future__ import annotations

from pathlib import Path

import pytest

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.cub200 import Cub200

CLASSES = ("001.Black_footed_Albatross", "002.Laysan_Albatross")
IMAGES = {  # id: (class id, name, training image, grey)
    "1": ("1", "Black_0001_1.jpg", "1", 10),
    "2": ("1", "Black_0002_2.jpg", "0", 20),
    "3": ("2", "Laysan_0001_3.jpg", "0", 30),
    "4": ("2", "Laysan_0002_4.jpg", "1", 40),
    "5": ("2", "Laysan_0003_5.jpg", "1", 50),
}


class Tiny(Cub200):
    classes, train_samples, test_samples = 2, 3, 2


@pytest.fixture
def archive(tmp_path: Path, photo) -> Path:
    """As `CUB_200_2011.tgz` unpacks; one photograph is grey, as some of the real ones."""
    folder = tmp_path / "CUB_200_2011"
    for number, (kind, name, _, grey) in IMAGES.items():
        photo(folder / "images" / CLASSES[int(kind) - 1] / name, grey, mode="L" if number == "3" else "RGB")
    tables = {
        "classes.txt": [f"{i + 1} {name}" for i, name in enumerate(CLASSES)],
        "images.txt": [f"{key} {CLASSES[int(kind) - 1]}/{name}" for key, (kind, name, _, _) in IMAGES.items()],
        "image_class_labels.txt": [f"{key} {kind}" for key, (kind, *_) in IMAGES.items()],
        "train_test_split.txt": [f"{key} {flag}" for key, (_, _, flag, _) in IMAGES.items()],
    }
    for name, lines in tables.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def test_joins_the_tables(archive: Path, greys) -> None:
    corpus, _ = open_dataset(Tiny(), archive.parent)
    assert corpus.class_names == CLASSES
    assert corpus.train.inputs.shape == (3, 224, 224, 3)
    assert greys(corpus.train) == [(0, 10), (1, 40), (1, 50)]
    assert greys(corpus.test) == [(0, 20), (1, 30)]


def test_tree_gives_the_same_data(archive: Path, tmp_path: Path) -> None:
    for kind, name, flag, _ in IMAGES.values():
        copy = tmp_path / "b" / "cub200" / ("train" if flag == "1" else "test") / CLASSES[int(kind) - 1] / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((archive / "images" / CLASSES[int(kind) - 1] / name).read_bytes())
    assert open_dataset(Tiny(), tmp_path / "b")[1] == open_dataset(Tiny(), archive.parent)[1]


@pytest.mark.parametrize(
    ("table", "old", "new", "reason"),
    [
        ("train_test_split.txt", "3 0\n", "", "do not list the same images"),
        ("image_class_labels.txt", "5 2", "5 7", "image_class_labels.txt has class 7, which classes.txt has not"),
        ("images.txt", "1 001.Black_footed_Albatross/", "1 ../../", "images.txt names '../../Black_0001_1.jpg'"),
        (
            "classes.txt",
            "1 001.Black_footed_Albatross",
            "1",
            "cannot read lines of an id and a value from .*classes.txt",
        ),
        ("images.txt", "Black_0001_1.jpg", "Black_9999_1.jpg", "cannot read .*Black_9999_1.jpg: No such file"),
        ("train_test_split.txt", "3 0", "3 1", r"classes, train, test are \(2, 4, 1\), expected \(2, 3, 2\)"),
    ],
)
def test_tables_that_do_not_fit(archive: Path, table: str, old: str, new: str, reason: str) -> None:
    text = (archive / table).read_text()
    assert old in text
    (archive / table).write_text(text.replace(old, new))
    with pytest.raises(DataError, match=reason):
        open_dataset(Tiny(), archive.parent)


def test_missing_table_is_named_with_where_to_get_it(archive: Path) -> None:
    (archive / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"cub200: not found: no .*/CUB_200_2011/classes\.txt") as caught:
        open_dataset(Tiny(), archive.parent)
    assert "97eceeb196236b17998738112f37df78" in (caught.value.hint or "")
