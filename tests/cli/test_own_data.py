"""Own images and texts as a person would try them: inspect, check, run and board, each in a few lines."""

import json
import random

import pandas as pd
import pytest
from PIL import Image

from fcilbench.cli import doctor

TEXT_NET = """\
import numpy as np
import torch
from torch import nn
from fcilbench.api import FeatureExtractor, Field, TextBackbone, TokenIds

class Letters(TextBackbone):
    "The mean of one vector for each letter."
    version = "1"

    class Params(TextBackbone.Params):
        max_length: int = Field(16, ge=1)

    def encode(self, texts):
        rows = [[1 + ord(each) % 63 for each in text[: self.params.max_length]] or [0] for text in texts]
        lengths = np.array([len(row) for row in rows])
        ids = np.zeros((len(rows), lengths.max(initial=1)), dtype=np.int32)
        for target, row in zip(ids, rows):
            target[: len(row)] = row
        return TokenIds(ids, lengths, 0)

    def build(self):
        class Mean(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(64, 8, padding_idx=0)
            def forward(self, ids):
                return self.table(ids).mean(dim=1)
        return FeatureExtractor(Mean(), 8)
"""

SHARED = "no test set is named: test_share 0.2 of each class, by content, is the test set"


@pytest.fixture(scope="module")
def site(put, tmp_path_factory):
    """A folder of packages with a small text backbone."""
    points = {"backbones": {"letters": "letters_fcil:Letters"}}
    return put(tmp_path_factory.mktemp("site"), "letters", {"letters_fcil.py": TEXT_NET}, points)


@pytest.fixture
def own(cli, site):
    """The command line in a folder with own images and texts."""
    cli.environment["PYTHONPATH"] += f":{site}"
    draw = random.Random(0)
    for split, count in (("train", 10), ("test", 4)):
        for name in ("cat", "dog", "eel"):
            for number in range(count):
                path = cli.folder / "pets" / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (9 + number % 2, 8), tuple(draw.randrange(256) for _ in "rgb")).save(path)
    rows = [
        {"text": f"{name} number {number}", "label": name} for name in ("cat", "dog", "eel") for number in range(10)
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(cli.folder / "a.csv", index=False)
    frame.to_csv(cli.folder / "b.csv", index=False, sep=";")
    frame.to_parquet(cli.folder / "a.parquet")
    frame.to_json(cli.folder / "a.jsonl", orient="records", lines=True)
    return cli


def suite(own, data, backbone, methods="[fedavg, ncm]"):
    dataset = ("{use: stripes, tasks: 2, train_per_class: 4, test_per_class: 2}", data)
    own.suite("own.yaml", dataset, ("{use: tiny-conv}", backbone), ("[fedavg, acme]", methods))


def trained(own):
    done = own("run", "own.yaml", "--tracking", "none", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (own.folder / "results" / "rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_readmes_line_on_a_folder_trains(own):
    suite(own, "{use: image-folder, path: pets}", "{use: tiny-conv}")
    rows = trained(own)
    assert [(row["status"], row["warnings"]) for row in rows] == [("ok", []), ("ok", [])]
    assert [len(names) for names in rows[0]["classes"]] == [1, 1, 1]


def test_readmes_line_on_a_file_trains_and_tells_the_share_once(own):
    suite(own, "{use: csv, path: a.csv}", "{use: letters}")
    checked = own("check", "own.yaml")
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("test_share") == 1
    assert f"note: dataset 'csv': {SHARED}" in checked.stdout
    rows = trained(own)
    assert [(row["status"], row["warnings"]) for row in rows] == [("ok", [f"data: {SHARED}"])] * 2
    board = own("board", "accuracy").stdout
    assert " ".join(board.split()).count(SHARED) == 1


def test_every_form_of_a_table_and_nested_folders_train(own):
    for name in ("cat", "dog", "eel"):
        (own.folder / "pets" / "train" / name).rename(own.folder / "pets" / "was")
        (own.folder / "pets" / "train" / name).mkdir()
        (own.folder / "pets" / "was").rename(own.folder / "pets" / "train" / name / "images")
    files = {"b.csv": "", "a.parquet": ", test_share: 0.3", "a.jsonl": ", test_share: 0.4"}
    data = [f"{{use: csv, label: {name}, path: {name}{more}}}" for name, more in files.items()]
    nets = [f"    - {{use: letters, label: net-{name}, max_length: {9 + at}}}" for at, name in enumerate(files)]
    backbones = "\n".join(["{use: tiny-conv}", *nets])
    suite(own, f"{{use: image-folder, path: pets}}, {', '.join(data)}", backbones, "[fedavg]")
    path = own.folder / "own.yaml"
    path.write_text(path.read_text().replace("  stress: [none]", "  stress: [none]\n  zip: [dataset, backbone]"))
    rows = trained(own)
    assert [row["coords"]["dataset"] for row in rows] == ["image-folder", *files]
    assert {row["status"] for row in rows} == {"ok"}


def test_mistakes_are_refused_by_check_with_file_and_line(own):
    (own.folder / "c.csv").write_text("label,text\nyes,hello, world\n")
    suite(own, "{use: csv, path: c.csv}", "{use: letters}")
    done = own("check", "own.yaml")
    assert done.returncode == 5
    words = " ".join(done.stdout.split())
    assert "csv: c.csv:2: 3 fields, but the header has 2" in words.replace(f"{own.folder}/", "")
    assert "put quotes around a text that holds ',', as in \"hello, world\"" in words


class TestInspect:
    def test_a_folder_of_images(self, own):
        Image.new("RGB", (64, 64)).save(own.folder / "pets" / "train" / "cat" / "big.jpg")
        (own.folder / "pets" / "train" / "cat" / "note.txt").write_text("")
        done = own("data", "inspect", "pets", "-s", "size=16")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0] == "pets (fcilbench/image-folder)"
        assert "  read as     train/<class>/* and test/<class>/*" in lines
        assert "  samples     31 for training and 12 for tests, of 3 classes" in lines
        assert "  sizes       9x8 (21), 10x8 (21), 64x64 (1)" in lines
        assert "  kinds       RGB 43, PNG 42, JPEG 1" in lines
        assert "  note        passed over in class folders, since they are no images: 1 .txt" in lines
        assert "  enlarged    42 images with a side shorter than the 16 pixels of `size`" in lines
        assert "  in a suite  dataset: [{use: image-folder, path: pets, size: 16}]" in lines
        (cat,) = [line.split() for line in lines if line.startswith("cat")]
        assert [*cat[:1], *cat[2:]] == ["cat", "11", "4"]
        at = lines.index("partition dirichlet-0.5 over 10 clients: a row for each client, a column for each class")
        assert len(lines[at + 1].split("│")) == 5

    def test_the_partition_is_that_of_the_run(self, own):
        suite(own, "{use: image-folder, path: pets, tasks: [2, 1]}", "{use: tiny-conv}")
        (found,) = own.json("data", "inspect", "own.yaml")["datasets"]
        (partition,) = found["partitions"]
        assert (partition["label"], partition["clients"], found["problem"]) == ("iid", 2, None)
        assert [len(task["classes"]) for task in partition["tasks"]] == [2, 1]
        assert [sum(map(sum, task["counts"])) for task in partition["tasks"]] == [20, 10]
        rows = trained(own)
        assert rows[0]["classes"] == [task["classes"] for task in partition["tasks"]]
        assert rows[0]["data"]["fingerprint"] == found["digest"]

    def test_a_partition_that_cannot_be_drawn(self, own):
        suite(own, "{use: image-folder, path: pets, tasks: [2, 1], train_per_class: 1}", "{use: tiny-conv}")
        done = own("data", "inspect", "own.yaml")
        assert done.returncode == 2
        assert "partition iid: task 2: partition iid: 1 samples cannot give 2 clients 1 each (lower" in done.stdout

    def test_texts_and_what_backbones_cut(self, own):
        rows = [f"{'long ' * number},{'ab'[number % 2]}" for number in range(10)]
        (own.folder / "c.csv").write_text(
            "\n".join(["text,label", *rows, "long long,b", "x,0", "y,0.0", "z,0", "w,0.0"])
        )
        suite(own, "{use: csv, path: c.csv}", "{use: letters}")
        (found,) = own.json("data", "inspect", "own.yaml")["datasets"]
        texts = found["texts"]
        assert texts["words"] == {"least": 0, "median": 2, "p95": 9, "largest": 9}
        assert texts["empty"] == 1
        (tokens,) = texts["tokens"]
        assert (tokens["backbone"], tokens["limit"], tokens["full"], tokens["largest"]) == ("letters", 16, 6, 16)
        assert found["alike"] == [["0", "0.0"]]
        shown = own("data", "inspect", "own.yaml").stdout
        assert "alike       '0' and '0.0' are two classes" in shown
        assert "for letters; 6 texts of 16 or more, cut there" in shown

    def test_every_broken_image_is_named(self, own):
        for number in (1, 2):
            (own.folder / "pets" / "train" / "dog" / f"{number}.png").write_bytes(b"no image")
        (own.folder / "pets" / "train" / "dog" / "2.png").write_bytes(b"no image either")
        done = own("data", "inspect", "pets")
        assert done.returncode == 5
        assert [line.split()[1].rpartition("/")[2] for line in done.stdout.splitlines() if "  broken" in line] == [
            "1.png:",
            "2.png:",
        ]

    @pytest.mark.parametrize(
        ("words", "code", "told"),
        [
            (["nothing"], 5, "'nothing' not found; looked at"),
            (["pets", "-s", "tset_share=0.2"], 2, "unknown key 'tset_share' (did you mean 'test_share'?)"),
            (["a.csv", "-s", "text_column=body"], 5, "has no column 'body'; it has: text, label"),
        ],
    )
    def test_what_cannot_be_read(self, own, words, code, told):
        done = own("data", "inspect", *words)
        assert (done.returncode, told in " ".join(done.stdout.split())) == (code, True), done.stdout

    def test_a_built_in_data_set(self, own):
        own.suite("stripes.yaml")
        (found,) = own.json("data", "inspect", "stripes.yaml")["datasets"]
        assert (found["train"], found["test"], found["images"]["modes"]) == (16, 8, {"L": 24})
        assert found["images"]["sizes"] == [{"width": 8, "height": 8, "count": 24}]


def test_doctor_says_what_a_data_set_of_yours_needs(monkeypatch):
    asked = []
    monkeypatch.setattr(doctor, "_datasets", lambda uses, _: asked.extend(name for name, _ in uses) or [])
    told = {each.what: each.detail for each in doctor._every_dataset()}
    assert told["data fcilbench/csv"] == "needs path: `doctor SUITE` verifies a suite's"
    assert "fcilbench/digits" in asked
    assert "fcilbench/csv" not in asked
