import importlib
import json
import logging
import multiprocessing
import os
import time

import numpy as np
import pytest

from fcilbench.api.dataset import Corpus, Dataset, DatasetParams, Samples
from fcilbench.data import images
from fcilbench.data.images import ImageDataset
from fcilbench.data.open import _made_from, open_dataset
from fcilbench.errors import DataError


class Pets(ImageDataset):
    name = "pets"
    classes, default_tasks, train_samples, test_samples = 2, 2, 4, 2
    layouts = (("pets/train", "pets/test"),)

    class Params(DatasetParams):
        size: int = 8

    def official(self, paths):
        raise AssertionError("only the tree is here")


@pytest.fixture
def root(tmp_path, image):
    for i in range(4):
        image(tmp_path / "pets" / "train" / ("cat" if i < 2 else "dog") / f"{i}.png", i)
    for i in range(2):
        image(tmp_path / "pets" / "test" / ("cat", "dog")[i] / f"{i}.png", 10 + i)
    return tmp_path


def caches(cache):
    folder = cache / "datasets"
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.exists() else []


def forbid(monkeypatch):
    def no(*_, **__):
        raise AssertionError("an image was read")

    monkeypatch.setattr(images, "read_image", no)
    monkeypatch.setattr(images, "file_digest", no)


def same(one, two):
    pairs = ((one.train, two.train), (one.test, two.test))
    return one.class_names == two.class_names and all(
        np.array_equal(a.inputs, b.inputs) and np.array_equal(a.labels, b.labels) for a, b in pairs
    )


def test_second_use_reads_no_image(root, cache, monkeypatch):
    first, digest = open_dataset(Pets(), root)
    assert isinstance(first.train.inputs, np.memmap)
    assert first.train.inputs.shape == (4, 8, 8, 3)
    forbid(monkeypatch)
    second, again = open_dataset(Pets(), root)
    assert again == digest
    assert same(first, second)
    assert len(caches(cache)) == 1


def test_writing_to_the_corpus_changes_no_file(root):
    corpus, _ = open_dataset(Pets(), root)
    before = corpus.train.inputs.copy()
    corpus.train.inputs[:] = 0
    assert np.array_equal(open_dataset(Pets(), root)[0].train.inputs, before)
    assert before.any()


def test_device_takes_what_is_mapped(root, recwarn):
    torch = pytest.importorskip("torch")
    from fcilbench.api.backbone import ImageInput
    from fcilbench.engine.data import DeviceImages

    dataset = Pets()
    corpus, _ = open_dataset(dataset, root)
    held = DeviceImages(corpus.train, ImageInput(8), dataset.augmentation, torch.device("cpu"))
    assert np.array_equal(held.pixels.numpy(), corpus.train.inputs.transpose(0, 3, 1, 2))
    assert not [each for each in recwarn if "writable" in str(each.message)]


def test_limits_share_the_cache_and_size_does_not(root, cache, monkeypatch):
    whole, digest = open_dataset(Pets(), root)
    other, same_digest = open_dataset(Pets(Pets.Params(size=16)), root)
    assert other.train.inputs.shape == (4, 16, 16, 3)
    assert same_digest == digest  # the files are the content, whatever they are decoded to
    assert other.train.labels.tolist() == whole.train.labels.tolist()
    assert len(caches(cache)) == 2
    forbid(monkeypatch)
    few, _ = open_dataset(Pets(Pets.Params(train_per_class=1)), root)
    assert sorted(few.train.labels.tolist()) == [0, 1]


@pytest.mark.parametrize("change", ["content", "time", "name", "fewer", "link"])
def test_changed_source_is_read_again(root, cache, image, change):
    before, digest = open_dataset(Pets(), root)
    path = root / "pets" / "train" / "cat" / "0.png"
    if change == "content":
        image(path, 77)
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "name":
        path.rename(path.with_name("9.png"))  # the last of its class
    elif change == "link":
        path.with_name("gone.txt").symlink_to("nowhere")
    else:
        path.unlink()
        with pytest.raises(DataError, match=r"classes, train, test are \(2, 3, 2\), expected \(2, 4, 2\)"):
            open_dataset(Pets(), root)
        return
    after, new_digest = open_dataset(Pets(), root)
    assert same(before, after) == (change != "content")
    assert (new_digest == digest) == (change != "content")
    assert len(caches(cache)) == 1


def test_a_changed_module_that_the_class_imports_is_read_again(root, cache, tmp_path, monkeypatch):
    """What the helper decides is not known, so that any change of it counts."""
    site = tmp_path / "site" / "acme_pets"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("")
    (site / "helper.py").write_text("VALUE = 10\n")
    (site / "pets.py").write_text(
        "from acme_pets import helper\nfrom fcilbench.data.images import ImageDataset\n"
        "class Pets(ImageDataset):\n    layouts = (('pets/train', 'pets/test'),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    pets = importlib.import_module("acme_pets.pets").Pets()
    before = _made_from(pets, root)
    assert _made_from(pets, root) == before
    (site / "helper.py").write_text("VALUE = 770\n")
    after = _made_from(pets, root)
    assert {name for name in after if after[name] != before[name]} == {"code"}


def test_another_version_is_another_cache(root, cache):
    open_dataset(Pets(), root)

    class Newer(Pets):
        version = "2"

    Newer.__name__, Newer.__qualname__ = "Pets", "Pets"
    open_dataset(Newer(), root)
    assert len(caches(cache)) == 2


@pytest.mark.parametrize("damage", ["cut", "zeros", "one bit"])
@pytest.mark.parametrize("name", ["cache.json", "train.npy", "test-labels.npy"])
def test_b3_damaged_cache_is_made_again_with_a_warning(root, cache, caplog, name, damage):
    before, digest = open_dataset(Pets(), root)
    kept = before.train.inputs.copy()
    (path,) = cache.glob(f"datasets/*/{name}")
    body = bytearray(path.read_bytes())
    if damage == "cut":
        del body[-30:]
    elif damage == "zeros":
        body[-16:] = bytes(16)
    else:
        body[len(body) // 2] ^= 1
    stat = path.stat()
    path.write_bytes(bytes(body))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # a disk that rots changes no time
    with caplog.at_level(logging.WARNING):
        after, again = open_dataset(Pets(), root)
    assert caplog.text.count("is damaged and made again") == 1
    assert np.array_equal(after.train.inputs, kept)
    assert after.test.labels.tolist() == before.test.labels.tolist()
    assert again == digest
    assert len(caches(cache)) == 1


def test_fresh_reads_again_what_only_looks_unchanged(root):
    open_dataset(Pets(), root)
    path = root / "pets" / "train" / "dog" / "3.png"
    stat = path.stat()
    path.write_bytes(bytes(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    open_dataset(Pets(), root)
    with pytest.raises(DataError, match="broken image"):
        open_dataset(Pets(), root, fresh=True)


def test_broken_image_leaves_nothing(root, cache):
    path = root / "pets" / "train" / "dog" / "3.png"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=f"broken image {path}: "):
        open_dataset(Pets(), root)
    assert caches(cache) == []


def test_full_disk_leaves_nothing_and_works_in_memory(root, cache, caplog, full_disk):
    with caplog.at_level(logging.WARNING), full_disk(500):
        corpus, digest = open_dataset(Pets(), root)
    assert not isinstance(corpus.train.inputs, np.memmap)
    assert "decoded into memory, every time: no cache at" in caplog.text
    assert "FCILBENCH_CACHE" in caplog.text
    assert caches(cache) == []
    again, same_digest = open_dataset(Pets(), root)
    assert isinstance(again.train.inputs, np.memmap)
    assert same_digest == digest
    assert same(again, corpus)


def test_what_a_killed_process_left_is_removed(root, cache):
    open_dataset(Pets(), root)
    (name,) = caches(cache)
    left = cache / "datasets" / f".{name}.tmp"
    left.mkdir()
    (left / "train.npy").write_bytes(b"half")
    os.utime(root / "pets" / "train" / "cat" / "0.png", ns=(1, 1))
    open_dataset(Pets(), root)
    assert caches(cache) == [name]


def test_progress_counts_every_sample(root):
    seen: list[tuple[int, int]] = []
    open_dataset(Pets(), root, lambda done, total: seen.append((done, total)))
    assert seen == [(i, 6) for i in range(1, 7)]
    open_dataset(Pets(), root, lambda done, total: seen.append((done, total)))
    assert len(seen) == 6


class Slow(Dataset):
    classes, default_tasks, train_samples, test_samples, cached = 2, 2, 2, 2, True

    def load(self, root):
        with (root / "log").open("a") as log:
            log.write("loaded\n")
        time.sleep(0.5)
        half = Samples(np.arange(2, dtype=np.uint8).reshape(2, 1, 1, 1), np.arange(2))
        return Corpus(half, half, ("a", "b"))


def test_two_processes_decode_once(tmp_path, cache):
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    processes = [
        fork.Process(target=lambda: answers.put(open_dataset(Slow(), tmp_path)[1]), daemon=True) for _ in range(3)
    ]
    for process in processes:
        process.start()
    (answer,) = {answers.get() for _ in processes}
    assert answer.startswith("sha256:")
    assert (tmp_path / "log").read_text() == "loaded\n"
    (facts,) = cache.glob("datasets/*/cache.json")
    assert json.loads(facts.read_text())["class_names"] == ["a", "b"]


def test_arrays_are_cached_too(tmp_path, monkeypatch):
    class Toy(Dataset):
        classes, default_tasks, train_samples, test_samples, cached = 2, 2, 3, 2, True
        loaded = 0

        def load(self, root):
            Toy.loaded += 1
            inputs = np.arange(3 * 4, dtype=np.float32).reshape(3, 2, 2, 1)
            train = Samples(inputs, np.array([0, 1, 1]))
            return Corpus(train, train.take(np.array([0, 2])), ("a", "b"), inputs[:1])

    first, digest = open_dataset(Toy(), tmp_path)
    second, again = open_dataset(Toy(), tmp_path)
    assert Toy.loaded == 1
    assert digest == again
    assert second.train.inputs.dtype == np.float32
    assert second.outside.tolist() == [[[[0.0], [1.0]], [[2.0], [3.0]]]]
    assert same(first, second)
