"""Data sets of the user's own: real small folders and files, and EuroSAT's tiles as an image folder."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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
            ("all", {"train": "held"}, r"image-folder: cannot read folder .*/all/held: No such file"),
            ("split/train/cat", {"test_share": 0.5}, "image-folder: .*/cat has images but no class folders"),
            ("split", {"test_share": 0.5}, "image-folder: .*/split has train/ and test/, so test_share has nothing to"),
            ("split/train/cat/1.png", {}, "image-folder: .*/1.png is a file"),
        ],
    )
    def test_errors_name_the_folder_and_what_to_do(self, pets: Path, path: str, params: Any, reason: str) -> None:
        with pytest.raises(DataError, match=reason) as caught:
            folder(pets / path, **params)
        assert caught.value.hint

    def test_a_share_that_leaves_a_class_without_a_test_image(self, pets: Path) -> None:
        what = f"image-folder: {pets}/all: 12 samples of 3 classes cannot give 1 test samples to all classes"
        with pytest.raises(DataError, match=what) as caught:
            open_dataset(folder(pets / "all", test_share=0.1), pets)
        assert caught.value.hint == "set test_share to 0.25 or more, and at most 0.75"

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
            ("text,label\na,x\nb\n", {"test_share": 0.5}, r"a\.csv:3: no label"),
            ("text,label,s\na,x,train\nb,x,dev\n", {"split_column": "s"}, r"a\.csv:3: s is 'dev'"),
            ("text,label,s\na,x,train\nb,y,test\n", {"split_column": "s"}, r"a\.csv:3: label 'y' has no training text"),
            ("text,label,s\na,x,train\nb,y,train\nc,x,test\n", {"split_column": "s"}, "has no test text of class 'y'"),
            (TABLE, {"test_share": 0.1}, "4 samples of 2 classes cannot give 0 test samples"),
            ("text,label\n", {"test_share": 0.5}, r"a\.csv has no rows"),
            ("", {"test_share": 0.5}, "has no column 'text'; it has: none"),
            (b"text,label\n\xe9,x\n", {"test_share": 0.5}, r"a\.csv:2: byte 0xe9 is not UTF-8"),
        ],
    )
    def test_errors_name_file_and_line(self, tmp_path: Path, body: str | bytes, params: Any, reason: str) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(body if isinstance(body, bytes) else body.encode())
        with pytest.raises(DataError, match=reason) as caught:
            texts(path, **params)
        assert str(path) in str(caught.value)

    def test_a_file_without_any_option(self, tmp_path: Path) -> None:
        rows = [f"text {number},{'ab'[number % 2]}" for number in range(20)]
        (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]))
        dataset = texts(tmp_path / "a.csv")
        facts = dataset.instance_facts()
        assert (facts["train"], facts["test"], facts["reading"]) == (16, 4, 'utf-8, divided by commas, quotes "')
        assert facts["remarks"] == ["no test set is named: test_share 0.2 of each class, by content, is the test set"]
        assert texts(tmp_path / "a.csv", test_share=0.2).identity() == dataset.identity()
        assert texts(tmp_path / "a.csv", test_share=0.2).instance_facts()["remarks"] == []

    def test_the_same_texts_in_every_form_are_one_identity(self, tmp_path: Path) -> None:
        records = [
            {"text": f"text, {number}", "label": number % 2, "part": "train" if number > 3 else " Test"}
            for number in range(20)
        ]
        frame = pd.DataFrame(records)
        frame.to_csv(tmp_path / "a.csv", index=False)
        frame.to_csv(tmp_path / "b.csv", index=False, sep=";", encoding="utf-16")
        frame.to_parquet(tmp_path / "a.parquet")
        frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
        frame.to_json(tmp_path / "a.json", orient="records")
        found = {str(texts(path, split_column="part").identity()) for path in tmp_path.iterdir()}
        assert len(found) == 1
        assert texts(tmp_path / "a.jsonl", split_column="part").classes == 2

    @pytest.mark.parametrize("other", ["a ", "a\u00a0", "\u00e9"])
    def test_labels_between_which_no_difference_can_be_seen(self, tmp_path: Path, other: str) -> None:
        first = "e\u0301" if other == "\u00e9" else "a"
        (tmp_path / "a.csv").write_text(f"text,label\n1,{first}\n2,{first}\n3,{other}\n4,{other}\n")
        what = rf"a.csv:4: label {re.escape(ascii(other))} looks the same as {re.escape(ascii(first))} of .*a.csv:2"
        with pytest.raises(DataError, match=what) as caught:
            texts(tmp_path / "a.csv")
        assert caught.value.hint.startswith("write both alike")

    def test_labels_that_probably_mean_one_class_are_told(self, tmp_path: Path) -> None:
        rows = [f"{number} {label},{label}" for label in ("0", "0.0", "b", " c") for number in range(10)]
        (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows, ",b", "7 b, c"]))
        assert texts(tmp_path / "a.csv", test_share=0.3).instance_facts()["remarks"] == [
            "labels are read without blanks around them, accents in one form: ' c' as 'c'",
            "classes look alike and are kept apart: '0' and '0.0'",
            "1 sample under more than one label",
            "1 training text without a word",
        ]

    @pytest.mark.parametrize(
        ("record", "reason"),
        [
            ({"text": 5, "label": "a"}, r"a\.jsonl:3: text is 5, which is no text"),
            ({"text": "x", "label": 0.0}, r"a\.jsonl:3: label is 0.0, which is no label"),
            ({"text": None, "label": "a"}, r"a\.jsonl:3: no text"),
            ({"text": "x", "label": "  "}, r"a\.jsonl:3: no label"),
            ({"text": "x\ud800", "label": "a"}, r"a\.jsonl:3: text holds half a character"),
            ({"text": "x", "label": "a\x00"}, r"a\.jsonl:3: 'a\\x00' is no name of a class"),
        ],
    )
    def test_values_that_are_no_texts(self, tmp_path: Path, record: Any, reason: str) -> None:
        lines = [{"text": "x", "label": "a"}, {"text": "y", "label": True}, record]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
        with pytest.raises(DataError, match=reason) as caught:
            texts(tmp_path / "a.jsonl")
        assert caught.value.hint or "half a character" in reason

    def test_a_class_with_one_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("text,label\n1,a\n2,a\n3,a\n4,b\n")
        with pytest.raises(DataError, match=r"a\.csv: 4 samples of 2 classes .*: 'b' has one sample") as caught:
            texts(tmp_path / "a.csv", test_share=0.5)
        assert caught.value.hint == "add samples of the class, or leave it out: no test_share helps"

    def test_the_training_file_is_not_the_test_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(TABLE)
        with pytest.raises(DataError, match="is named for training and for test"):
            texts(tmp_path / "a.csv", test=str(tmp_path / "a.csv"))

    @pytest.mark.parametrize(
        ("params", "reason"),
        [
            (
                {"test_share": 0.5, "split_column": "s"},
                "give one of test, split_column and test_share, not",
            ),
            ({"encoding": "utf-9"}, "'utf-9' is no encoding of text, such as utf-8, cp1252"),
            ({"encoding": "rot13"}, "'rot13' is no encoding of text"),
            ({"delimiter": "\n"}, "cannot divide fields"),
            ({"text_column": "label"}, "text_column and label_column are the same, 'label'"),
        ],
    )
    def test_options_that_do_not_fit(self, params: Any, reason: str) -> None:
        with pytest.raises(ValidationError, match=reason):
            texts(Path("a.csv"), **params)
