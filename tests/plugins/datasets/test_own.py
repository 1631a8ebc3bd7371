"""Data sets of the user's own: real small folders and files, and EuroSAT's tiles as an image folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.eurosat import EuroSat
from fcilbench.plugins.datasets.own import Csv, ImageFolder
from fcilbench.suite.expand import expand
from fcilbench.suite.load import load_suite

EUROSAT = Path(os.environ.get("FCILBENCH_DATA", "")) / "EuroSAT_RGB"


def folder(path: Path, **params: Any) -> ImageFolder:
    return ImageFolder(ImageFolder.Params(path=str(path), size=8, **params))


def texts(path: Path, **params: Any) -> Csv:
    return Csv(Csv.Params(path=str(path), **params))


@pytest.fixture
def pets(tmp_path: Path, photo) -> Path:
    """Three classes of four images each, 12 and 4 of them in two folders, and all of them in one."""
    for label, name in enumerate(("cat", "dog", "eel")):
        for i in range(4):
            path = photo(tmp_path / "all" / name / f"{i}.png", 40 * label + 10 * i, (9, 8))
            place = tmp_path / "split" / ("test" if i == 0 else "train") / name / path.name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    return tmp_path


class TestImageFolder:
    def test_two_folders(self, pets: Path, greys) -> None:
        dataset = folder(pets / "split")
        corpus, digest = open_dataset(dataset, pets)
        assert corpus.class_names == ("cat", "dog", "eel")
        assert corpus.train.inputs.shape == (9, 8, 8, 3)
        assert greys(corpus.test) == [(0, 0), (1, 40), (2, 80)]
        facts = dataset.instance_facts()
        assert (facts["classes"], facts["train"], facts["test"], facts["default_tasks"]) == (3, 9, 3, [1, 1, 1])
        assert facts["fingerprint"] == digest
        assert ImageFolder.facts()["classes"] is None

    def test_a_share_of_one_folder(self, pets: Path) -> None:
        corpus, _ = open_dataset(folder(pets / "all", test_share=0.5), pets)
        assert np.bincount(corpus.train.labels).tolist() == np.bincount(corpus.test.labels).tolist() == [2, 2, 2]

    def test_identity_is_the_content_not_the_path(self, pets: Path, photo) -> None:
        dataset = folder(pets / "split")
        assert dataset.identity() == {"path": dataset.instance_facts()["fingerprint"], "size": 8}
        shutil.copytree(pets / "split", pets / "moved")
        (pets / "moved" / "test").rename(pets / "moved" / "held-out")
        assert folder(pets / "moved", test="held-out").identity() == dataset.identity()
        assert folder(pets / "all", test_share=0.25).identity() != dataset.identity()
        assert folder(pets / "split", train_per_class=1).identity() == {**dataset.identity(), "train_per_class": 1}
        photo(pets / "moved" / "train" / "cat" / "3.png", 77)
        assert folder(pets / "moved", test="held-out").identity() != dataset.identity()

    def test_files_tell_that_something_was_added_or_changed(self, pets: Path) -> None:
        found = folder(pets / "all", test_share=0.5).files()
        assert pets / "all" in found
        assert pets / "all" / "dog" in found
        assert sum(path.suffix == ".png" for path in found) == 12

    def test_relative_to_here_or_to_the_data_root(self, pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(pets)
        monkeypatch.setenv("FCILBENCH_DATA", str(pets / "all"))
        here = folder(Path("split")).identity()
        monkeypatch.chdir("/")
        monkeypatch.setenv("FCILBENCH_DATA", str(pets))
        assert folder(Path("split")).identity() == here

    @pytest.mark.parametrize(
        ("path", "params", "reason"),
        [
            ("none", {}, r"'.*/none' not found; looked at .*/none$"),
            ("all", {}, r"image-folder: cannot read folder .*/all/train: No such file"),
            ("split/train/cat", {"test_share": 0.5}, "image-folder: .*/cat has no class folders"),
        ],
    )
    def test_errors_name_the_folder_and_what_to_do(self, pets: Path, path: str, params: Any, reason: str) -> None:
        with pytest.raises(DataError, match=reason) as caught:
            folder(pets / path, **params)
        assert caught.value.hint

    def test_a_share_that_leaves_a_class_without_a_test_image(self, pets: Path) -> None:
        with pytest.raises(DataError, match="image-folder: 12 samples of 3 classes cannot give 1 test") as caught:
            open_dataset(folder(pets / "all", test_share=0.1), pets)
        assert str(pets / "all") in (caught.value.hint or "")

    def test_twelve_classes_are_five_tasks(self, tmp_path: Path, photo) -> None:
        for name in "abcdefghijkl":
            for split in ("train", "test"):
                photo(tmp_path / split / name / "1.png", 9)
        assert folder(tmp_path).default_tasks == (3, 3, 2, 2, 2)

    def test_two_folders_in_one_suite_keep_their_own_facts(self, pets: Path) -> None:
        grid = (
            "{dataset: [{use: image-folder, label: one, path: split, size: 8},"
            " {use: image-folder, label: two, path: all, test_share: 0.5, size: 8, tasks: 1}],"
            " backbone: [{use: timm, model: resnet10t, weights: none, input_size: 32}], partition: [iid],"
            " aggregator: [ncm]}"
        )
        (pets / "suite.yaml").write_text(f"fcilbench: 1\nname: own\nprotocol: {{clients: 2}}\ngrid: {grid}\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FCILBENCH_DATA", str(pets))
            cells = expand(load_suite(pets / "suite.yaml")).cells
        declared = [folder(pets / "split"), folder(pets / "all", test_share=0.5)]
        assert [cell.data_fingerprint for cell in cells] == [each.identity()["path"] for each in declared]
        assert [cell.tasks for cell in cells] == [(1, 1, 1), (3,)]

    @pytest.mark.slow
    @pytest.mark.skipif(not EUROSAT.is_dir(), reason="FCILBENCH_DATA has no EuroSAT_RGB folder")
    def test_eurosat_as_a_folder_is_the_data_set(self) -> None:
        dataset = ImageFolder(ImageFolder.Params(path=str(EUROSAT), test_share=0.2, size=64))
        assert (dataset.classes, dataset.train_samples, dataset.test_samples) == (10, 21_600, 5_400)
        assert dataset.identity() == {"path": EuroSat.fingerprint, "size": 64}


TABLE = 'id,text,label\n1,"red, ""warm""\nand bright",colour\n2,three,number\n3,blue,colour\n4,four,number\n'


class TestCsv:
    def test_a_share(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(TABLE, encoding="utf-8-sig")  # as spreadsheets save it
        dataset = texts(tmp_path / "a.csv", test_share=0.5)
        corpus, digest = open_dataset(dataset, tmp_path)
        assert corpus.class_names == ("colour", "number")
        assert {*corpus.train.inputs, *corpus.test.inputs} == {'red, "warm"\nand bright', "three", "blue", "four"}
        assert sorted(corpus.test.labels.tolist()) == [0, 1]
        facts = dataset.instance_facts()
        assert (facts["classes"], facts["train"], facts["test"], facts["default_tasks"]) == (2, 2, 2, [1, 1])
        assert facts["fingerprint"] == digest
        assert dataset.files() == [tmp_path / "a.csv"]

    def test_three_ways_to_say_the_same_are_one_identity(self, tmp_path: Path) -> None:
        rows = [("a", "x", "train"), ("b", "y", "train"), ("c", "x", "test"), ("d", "y", "test")]
        lines = [f"{text}\t{label}\t{split}" for text, label, split in rows]
        (tmp_path / "all.tsv").write_text("\n".join(["words\tkind\tpart", *reversed(lines)]))
        for split in ("train", "test"):
            kept = [f"{text},{label}" for text, label, each in rows if each == split]
            (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *kept]))
        marked = texts(tmp_path / "all.tsv", split_column="part", text_column="words", label_column="kind")
        apart = texts(tmp_path / "train.csv", test=str(tmp_path / "test.csv"))
        corpus, digest = open_dataset(marked, tmp_path)
        assert sorted(corpus.test.inputs) == ["c", "d"]
        assert marked.identity() == apart.identity() == {"path": digest}
        (tmp_path / "test.csv").write_text("text,label\nc,x\nD,y\n")
        assert texts(tmp_path / "train.csv", test=str(tmp_path / "test.csv")).identity() != {"path": digest}

    @pytest.mark.parametrize(
        ("body", "params", "reason"),
        [
            (TABLE, {"test_share": 0.5, "label_column": "kind"}, "has no column 'kind'; it has: id, text, label"),
            ("text,label\na,x\nb\n", {"test_share": 0.5}, r"a\.csv, line 3: no text or no label"),
            ("text,label,s\na,x,train\nb,x,dev\n", {"split_column": "s"}, "line 3: s is 'dev'"),
            ("text,label,s\na,x,train\nb,y,test\n", {"split_column": "s"}, "line 3: label 'y' has no training text"),
            ("text,label,s\na,x,train\nb,y,train\nc,x,test\n", {"split_column": "s"}, "has no test text of 'y'"),
            (TABLE, {"test_share": 0.1}, "4 samples of 2 classes cannot give 0 test samples"),
            ("text,label\n", {"test_share": 0.5}, r"a\.csv has no rows"),
            ("", {"test_share": 0.5}, "has no column 'text'; it has: none"),
            (b"text,label\n\xe9,x\n", {"test_share": 0.5}, "is not UTF-8"),
        ],
    )
    def test_errors_name_file_and_line(self, tmp_path: Path, body: str | bytes, params: Any, reason: str) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(body if isinstance(body, bytes) else body.encode())
        with pytest.raises(DataError, match=reason) as caught:
            texts(path, **params)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("params", [{}, {"test_share": 0.5, "split_column": "s"}])
    def test_exactly_one_split(self, params: Any) -> None:
        with pytest.raises(ValidationError, match="give exactly one of test, split_column and test_share"):
            texts(Path("a.csv"), **params)
