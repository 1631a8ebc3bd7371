"""The reader is tested on small files of the official format that are written here, and on the real archive."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.cifar import Cifar10, Cifar100

Write = Callable[[str, Any], Path]


class Tiny(Cifar100):
    """The same reader for 3 classes, 6 training and 3 test images."""

    classes = 3
    train_samples = 6
    test_samples = 3
    fingerprint = ""


def record(count: int) -> dict[bytes, Any]:
    """Image i is all red i, green 100 + i, blue 200 + i; its label is i % 3."""
    rows = np.zeros((count, 3, 1024), dtype=np.uint8)
    rows += np.arange(count, dtype=np.uint8)[:, None, None] + np.array([0, 100, 200], dtype=np.uint8)[None, :, None]
    return {
        b"filenames": [b"x.png"] * count,
        b"batch_label": b"batch 1 of 1",
        b"fine_labels": [i % 3 for i in range(count)],
        b"coarse_labels": [0] * count,
        b"data": rows.reshape(count, 3072),
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A complete tiny archive below `tmp_path`; call it to replace a file."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()

    def replace(name: str, content: Any) -> Path:
        raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(raw)
        return folder / name

    replace("meta", {b"fine_label_names": [b"apple", b"bear", b"can"], b"coarse_label_names": [b"things"]})
    replace("train", record(6))
    replace("test", record(3))
    return replace


def test_reads_planes_as_rgb_images(tmp_path: Path, write: Write) -> None:
    train = record(6)
    train[b"data"][0, 2 * 1024 + 5 * 32 + 9] = 77  # blue plane, row 5, column 9
    write("train", train)
    loaded = Tiny().load(tmp_path)
    assert loaded.class_names == ("apple", "bear", "can")
    assert np.argwhere(loaded.train.inputs[0] == 77).tolist() == [[5, 9, 2]]
    assert loaded.train.inputs.shape == (6, 32, 32, 3)
    assert loaded.train.inputs.dtype == np.uint8
    assert loaded.train.inputs[4, 31, 7].tolist() == [4, 104, 204]
    assert loaded.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert loaded.train.labels.dtype == np.int64


def test_order_of_the_file_does_not_matter(tmp_path: Path, write: Write) -> None:
    _, digest = open_dataset(Tiny(), tmp_path)
    shuffled = record(6)
    shuffled[b"data"] = np.ascontiguousarray(shuffled[b"data"][::-1])
    shuffled[b"fine_labels"] = shuffled[b"fine_labels"][::-1]
    write("train", shuffled)
    assert open_dataset(Tiny(), tmp_path)[1] == digest
    write("train", {**record(6), b"fine_labels": [1, 0, 2, 0, 1, 2]})
    assert open_dataset(Tiny(), tmp_path)[1] != digest


def test_reads_what_python_2_and_numpy_1_wrote(tmp_path: Path, write: Write) -> None:
    """The official archive has Python 2 strings (opcode U) and the module path of numpy 1."""
    path = write("meta", b"(dp0\nS'fine_label_names'\n(lp1\nS'apple'\naS'bear'\naS'can'\nas.")
    assert Tiny().load(tmp_path).class_names == ("apple", "bear", "can")
    train = pickle.dumps(record(6), protocol=2)
    old = train.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    assert b"numpy.core.multiarray" in old
    write("train", old)
    assert Tiny().load(tmp_path).train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert path.exists()


def test_cifar10_joins_its_five_training_batches(tmp_path: Path) -> None:
    class Ten(Cifar10):
        classes, train_samples, test_samples = 3, 30, 6

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batches = {f"data_batch_{number}": record(6) for number in range(1, 6)} | {"test_batch": record(6)}
    for number, (name, batch) in enumerate(batches.items()):
        batch[b"labels"] = [(label + number) % 3 for label in batch.pop(b"fine_labels")]
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {b"label_names": [b"airplane", b"automobile", b"bird"], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    found = Ten().load(tmp_path)
    assert found.class_names == ("airplane", "automobile", "bird")
    assert found.train.inputs.shape == (30, 32, 32, 3)
    assert found.train.labels[:9].tolist() == [0, 1, 2, 0, 1, 2, 1, 2, 0]
    assert found.test.labels.tolist() == [2, 0, 1, 2, 0, 1]
    assert found.train.inputs[8, 0, 0].tolist() == [2, 102, 202]
    open_dataset(Ten(), tmp_path)
    (folder / "data_batch_4").unlink()
    with pytest.raises(DataError, match=r"cifar10: .*data_batch_4: cannot be read") as caught:
        Ten().load(tmp_path)
    assert "md5:c58f30108f718f92721af3b95e74349a" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_missing_file_says_where_to_put_what(tmp_path: Path, write: Write, name: str) -> None:
    (tmp_path / "cifar-100-python" / name).unlink()
    with pytest.raises(DataError) as caught:
        Tiny().load(tmp_path)
    assert (
        caught.value.message
        == f"cifar100: {tmp_path}/cifar-100-python/{name}: cannot be read: No such file or directory"
    )
    hint = caught.value.hint or ""
    assert "cifar-100-python.tar.gz" in hint
    assert "eb9058c3a382ffc7106e4002c42a8d85" in hint
    assert f"{tmp_path}/cifar-100-python" in hint


WHOLE = pickle.dumps(record(6), protocol=2)


@pytest.mark.parametrize("raw", [*(WHOLE[:kept] for kept in (0, 1, 100, -1)), b"\x1f\x8b\x08\x00 a gzip file"])
def test_truncated_file_or_no_pickle(tmp_path: Path, write: Write, raw: bytes) -> None:
    write("train", raw)
    with pytest.raises(DataError, match="train: truncated or damaged"):
        Tiny().load(tmp_path)


class _Touch:
    """Pickles as a call of `os.mkdir`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickle_runs_nothing(tmp_path: Path, write: Write, protocol: int) -> None:
    made = tmp_path / "made"
    raw = pickle.dumps({**record(6), b"extra": _Touch(made)}, protocol=protocol)
    write("train", raw)
    with pytest.raises(DataError, match=r"it asks for .*mkdir, which no CIFAR file needs"):
        Tiny().load(tmp_path)
    assert not made.exists()
    pickle.loads(raw)
    assert made.exists()  # the file was indeed harmful


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
        (b"cnumpy\nload\n(S'x'\ntR.", "numpy.load"),
        (b"cnumpy.core.multiarray\nscalar\n.", "numpy.core.multiarray.scalar"),
    ],
)
def test_refuses_every_other_name(tmp_path: Path, write: Write, raw: bytes, reason: str) -> None:
    write("meta", raw)
    with pytest.raises(DataError, match=f"truncated or damaged: .*{reason}"):
        Tiny().load(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("train", record(5), r"classes, train, test are \(3, 5, 3\), expected \(3, 6, 3\)"),
        ("train", {**record(6), b"fine_labels": [0] * 5}, "6 inputs but 5 labels"),
        ("train", {**record(6), b"fine_labels": [[0], [1, 2], 0, 0, 0, 0]}, "train: is not of the official format: "),
        ("train", {**record(6), b"data": [1]}, "train: is not of the official format: "),
        ("train", {b"data": record(6)[b"data"]}, r"has no entry 'fine_labels', only \['data'\]"),
        ("meta", {b"fine_label_names": [b"apple"]}, r"classes, train, test are \(1, 6, 3\), expected"),
        ("meta", [b"apple"], "truncated or damaged: 'list'"),
    ],
)
def test_wrong_content(tmp_path: Path, write: Write, name: str, change: Any, reason: str) -> None:
    write(name, change)
    with pytest.raises(DataError, match=reason):
        open_dataset(Tiny(), tmp_path)


def test_real_archive_has_the_declared_digest() -> None:
    root = Path(os.environ.get("FCILBENCH_DATA") or "/nonexistent")
    if not (root / "cifar-100-python" / "meta").is_file():
        pytest.skip("set FCILBENCH_DATA to a folder that holds cifar-100-python/")
    corpus, digest = open_dataset(Cifar100(Cifar100.Params(train_per_class=2, test_per_class=1)), root)
    assert digest == Cifar100.fingerprint
    assert corpus.class_names[0] == "apple"
    assert corpus.class_names[99] == "worm"
    assert np.bincount(corpus.train.labels).tolist() == [2] * 100
    assert np.bincount(corpus.test.labels).tolist() == [1] * 100


def test_tree_of_lossless_images_is_the_same_data(tmp_path: Path, write: Write) -> None:
    corpus, digest = open_dataset(Tiny(), tmp_path)
    names = ("apple", "bear", "can")
    for split, samples in (("train", corpus.train), ("test", corpus.test)):
        for i, (image, label) in enumerate(zip(samples.inputs, samples.labels, strict=True)):
            path = tmp_path / "tree" / "cifar100" / split / names[label] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    again, same = open_dataset(Tiny(), tmp_path / "tree")
    assert same == digest
    assert np.array_equal(again.train.inputs, corpus.train.inputs)
