"""Opens a data set: loads, numbers and verifies its samples, and caches decoded ones in memory-mapped files.

A cache is a folder `datasets/<class>-<key>/` in the cache folder. One process makes it while the others wait, under a
temporary name. It is made again if the files of the data set change, or if its own files are damaged.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fcilbench.api.dataset import Corpus, Dataset, Samples
from fcilbench.data import content, images
from fcilbench.data.content import number
from fcilbench.data.images import decoded
from fcilbench.data.root import file_digest, find_layout
from fcilbench.errors import DataError
from fcilbench.files import CACHE, cache_root, replacing, write_atomic
from fcilbench.registry.digest import code_digest

Progress = Callable[[int, int], None]
"""Called with the number of samples done and of all samples while a cache is made, at most some 400 times."""

_log = logging.getLogger(__name__)
_FORMAT = 2
_FACTS = "cache.json"
_REPORTS = 200


def open_dataset(
    dataset: Dataset, root: Path, progress: Progress | None = None, *, fresh: bool = False
) -> tuple[Corpus, str]:
    """Loads, verifies and numbers the samples by content, then keeps the requested number of each class.

    For a data set that is `cached`, a cache is used, or made, with calls of `progress`; `fresh` makes it again.

    Returns:
        The corpus, whose arrays may be changed, and the content digest of the whole data set.

    Raises:
        DataError: If the data are missing or damaged, or their counts or digest differ from what the plugin declares.
    """
    found = _open_cached(dataset, root, progress, fresh) if dataset.cached else None
    corpus, digest = found or load_numbered(dataset, root)
    corpus = kept(dataset, corpus)
    return replace(corpus, train=decoded(corpus.train), test=decoded(corpus.test)), digest


def load_numbered(dataset: Dataset, root: Path) -> tuple[Corpus, str]:
    """Loads the samples in the order of their content, without a cache, and compares them with what is declared.

    Raises:
        DataError: As `open_dataset` does.
    """
    corpus = dataset.load(root)
    name, found = type(dataset).__name__, (len(corpus.class_names), len(corpus.train), len(corpus.test))
    expected = (dataset.classes, dataset.train_samples, dataset.test_samples)
    if found != expected:
        raise DataError(f"{name}: classes, train, test are {found}, expected {expected}")
    if dataset.modality == "array":
        _check_arrays(dataset, corpus)
    corpus, digest = number(corpus)
    if dataset.fingerprint and digest != dataset.fingerprint:
        raise DataError(
            f"{name}: content digest {digest} is not the declared {dataset.fingerprint}",
            hint="the files under the data root are not the official data; fetch them again",
        )
    return corpus, digest


def _check_arrays(dataset: Dataset, corpus: Corpus) -> None:
    """Raises DataError if arrays have another shape than the plugin declares, or if they are not finite."""
    name = type(dataset).__name__
    for split, samples in (("train", corpus.train), ("test", corpus.test)):
        shape, wanted = samples.inputs.shape[1:], tuple(dataset.shape)
        if shape != wanted:
            raise DataError(f"{name}: {split} arrays have shape {shape}, expected {wanted}")
        broken = ~np.isfinite(samples.inputs).reshape(len(samples), -1).all(axis=1)
        if broken.any():
            first = int(np.argmax(broken))
            raise DataError(f"{name}: {int(broken.sum())} {split} arrays hold NaN or inf, the first is number {first}")


def kept(dataset: Dataset, corpus: Corpus) -> Corpus:
    """Returns the samples of each class that the parameters ask for: the first ones in the order of their content."""
    train = _per_class(corpus.train, dataset.params.train_per_class)
    return replace(corpus, train=train, test=_per_class(corpus.test, dataset.params.test_per_class))


def _per_class(samples: Samples, limit: int | None) -> Samples:
    if limit is None:
        return samples
    kept = [np.flatnonzero(samples.labels == label)[:limit] for label in np.unique(samples.labels)]
    return samples.take(np.sort(np.concatenate(kept)))


def _open_cached(dataset: Dataset, root: Path, progress: Progress | None, fresh: bool) -> tuple[Corpus, str] | None:
    """Reads the cache, which is made first if necessary; `None` if the cache folder cannot be written."""
    name, made_from = type(dataset).__name__, _made_from(dataset, root)
    folder = cache_root().absolute() / "datasets" / f"{name.lower()}-{_key(dataset, root)}"
    found = None if fresh else _read(folder, made_from)
    if found is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f".{folder.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the system frees it when its owner dies
            found = None if fresh else _read(folder, made_from, warn=True)  # another process may have made it
            if found is None:
                corpus, digest = load_numbered(dataset, root)
                _write(folder, corpus, {"made_from": made_from, "digest": digest}, progress)
            return found or _read(folder, made_from)
    except OSError as error:
        reason = f"no cache at {folder.parent} ({error.strerror or error}); {CACHE} names another folder"
        _log.warning("%s: decoded into memory, every time: %s", name, reason)
        return None


def _key(dataset: Dataset, root: Path) -> str:
    """Returns 16 hexadecimal digits: caches with different ones exist side by side."""
    options = dataset.params.model_dump(mode="json", exclude={"train_per_class", "test_per_class"})
    kind = type(dataset)
    parts = [_FORMAT, f"{kind.__module__}:{kind.__qualname__}", dataset.version, options, str(root.resolve())]
    return _digest(parts)[:16]


def _made_from(dataset: Dataset, root: Path) -> dict[str, str]:
    """Returns digests of what a cache is made from: the files, the code that reads them, the decoder."""
    kinds = [kind.__module__ for kind in type(dataset).__mro__ if issubclass(kind, Dataset) and kind is not Dataset]
    sources = [code_digest(module) for module in [*kinds, content.__name__, images.__name__]]
    files = sorted(_stamps(find_layout(dataset.layouts, root) or ()))
    return {"code": _digest(sources), "pillow": metadata.version("pillow"), "files": _digest(files)}


def _stamps(paths: Iterable[Path]) -> Iterator[tuple[str, int, int]]:
    """Yields name, size and time of every file below the paths."""
    for path in map(str, paths):
        below = os.walk(path, followlinks=True) if os.path.isdir(path) else [("", [], [path])]
        for folder, _, names in below:
            for place in (os.path.join(folder, name) for name in names):
                try:
                    stat = os.stat(place)
                    yield place, stat.st_size, stat.st_mtime_ns
                except OSError:  # a link to nothing
                    yield place, -1, -1


def _read(folder: Path, made_from: dict[str, str], warn: bool = False) -> tuple[Corpus, str] | None:
    """Reads a cache; `None` if there is none, or if it is out of date or damaged."""
    try:
        facts = json.loads((folder / _FACTS).read_text())
        if facts.pop("sha256") != _digest(facts):
            raise ValueError(f"{_FACTS} has changed")
        if facts["made_from"] != made_from:
            return None
        for name, digest in facts["files"].items():
            if file_digest(folder / name) != digest:
                raise ValueError(f"{name} has changed")
        train, test = (
            Samples(np.load(folder / f"{split}.npy", mmap_mode="c"), np.load(folder / f"{split}-labels.npy"))
            for split in ("train", "test")
        )
        outside = np.load(folder / "outside.npy") if "outside.npy" in facts["files"] else None
        names, remarks = map(tuple, (facts["class_names"], facts.get("remarks", ())))
        return Corpus(train, test, names, outside, remarks), facts["digest"]
    except FileNotFoundError:
        return None
    except Exception as error:  # the reader of a damaged file may raise anything
        if warn:
            _log.warning("%s is damaged and made again: %s", folder, error)
        return None


def _write(folder: Path, corpus: Corpus, facts: dict[str, Any], progress: Progress | None) -> None:
    """Writes a cache under a temporary name and renames it; the lock is held."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    temporary.mkdir()
    try:
        counter, total = itertools.count(1), len(corpus.train) + len(corpus.test)

        def report() -> None:
            done = next(counter)
            if progress is not None and (done % max(1, total // _REPORTS) == 0 or done == total):
                progress(done, total)

        for split, samples in (("train", corpus.train), ("test", corpus.test)):
            _save(temporary / f"{split}-labels.npy", samples.labels)
            _save(temporary / f"{split}.npy", samples.inputs, report)
        if corpus.outside is not None:
            _save(temporary / "outside.npy", corpus.outside)
        files = {path.name: file_digest(path) for path in sorted(temporary.iterdir())}
        body = {**facts, "files": files, "class_names": corpus.class_names, "remarks": corpus.remarks}
        write_atomic(temporary / _FACTS, json.dumps({**body, "sha256": _digest(body)}, indent=1))
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(path: Path, rows: Any, report: Callable[[], None] = lambda: None) -> None:
    """Writes a `.npy` file row by row, not through a memory map: there a full disk kills the process."""
    header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": rows.shape}
    with replacing(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for row in rows:
            file.write(np.ascontiguousarray(row).data)
            report()


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
