"""Decoded data sets on disk: numbered, memory-mapped, verified whenever they are read.

A cache is a folder `datasets/<class>-<key>/` in the cache folder. It appears under its name complete or not at all, and
one process makes it while the others wait. It is made again when the files of the data set change, and when its own
files are damaged.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import inspect
import itertools
import json
import logging
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcilbench.api.dataset import Corpus, Dataset, Samples
from fcilbench.data import content, images
from fcilbench.data.content import LazyInputs
from fcilbench.data.root import find_layout, sha256_file
from fcilbench.errors import FcilbenchError
from fcilbench.files import replacing, write_atomic
from fcilbench.registry.catalog import CACHE, cache_root

_log = logging.getLogger(__name__)
_FORMAT = 2
_FACTS = "cache.json"


def open_cached(
    dataset: Dataset,
    root: Path,
    make: Callable[[], tuple[Corpus, str]],
    progress: Callable[[int, int], None] | None = None,
    *,
    fresh: bool = False,
) -> tuple[Corpus, str]:
    """Opens a data set from its cache, which is made first if there is none, it is damaged or its sources have changed.

    Where the cache folder cannot be written or is full, the data set is decoded into memory and a warning says so.

    Args:
        dataset: A data set with `cached`.
        root: The data root.
        make: Returns the samples in their final order, which may be decoded later, and the content digest.
        progress: Called with the number of samples decoded and of all samples.
        fresh: Make the cache again in any case.

    Returns:
        The corpus, memory-mapped (writing to it changes no file) where there is a cache, and its content digest.

    Raises:
        DataError: What `make` raises, or if a sample cannot be decoded.
    """
    folder = cache_root().absolute() / "datasets" / f"{type(dataset).__name__.lower()}-{_key(dataset, root)}"
    made_from = _made_from(dataset, root)
    found = None if fresh else _read(folder, made_from)
    if found is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            # Another process may have made it meanwhile.
            found = None if fresh else _read(folder, made_from, warn=True)
            if found is None:
                corpus, digest = make()
                _write(folder, corpus, {"made_from": made_from, "digest": digest}, progress)
                found = _read(folder, made_from)
    except OSError as error:
        _log.warning(
            "%s: decoded into memory, every time: no cache at %s (%s); %s names another folder",
            type(dataset).__name__,
            folder.parent,
            error.strerror or error,
            CACHE,
        )
        found = None
    return make() if found is None else found


def _key(dataset: Dataset, root: Path) -> str:
    """Returns 16 hexadecimal digits that tell caches apart which are of use at the same time."""
    options = dataset.params.model_dump(mode="json", exclude={"train_per_class", "test_per_class"})
    kind = type(dataset)
    parts = [_FORMAT, f"{kind.__module__}:{kind.__qualname__}", dataset.version, options, str(root.resolve())]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _made_from(dataset: Dataset, root: Path) -> dict[str, Any]:
    """Returns what a cache must have been made from to hold: the files, the code that reads them, the decoder."""
    kinds = [kind.__module__ for kind in type(dataset).__mro__ if issubclass(kind, Dataset) and kind is not Dataset]
    code = hashlib.sha256()
    for module in [*kinds, content.__name__, images.__name__]:
        with contextlib.suppress(KeyError, OSError, TypeError):  # a class without a source file
            code.update(f"{module}\0{inspect.getsource(sys.modules[module])}\0".encode())
    files = sorted(_stamps(find_layout(dataset.layouts, root) or ()))
    stamp = hashlib.sha256(repr(files).encode()).hexdigest()
    return {"code": code.hexdigest(), "pillow": metadata.version("pillow"), "files": len(files), "stamp": stamp}


def _stamps(paths: tuple[Path, ...]) -> Iterator[tuple[str, int, int]]:
    """Yields name, size and time of every file below the paths; what is unreadable is told by whoever reads it."""
    for path in map(str, paths):
        below = os.walk(path, followlinks=True) if os.path.isdir(path) else [("", [], [path])]
        for folder, _, names in below:
            for name in names:
                place = os.path.join(folder, name)
                try:
                    stat = os.stat(place)
                    yield place, stat.st_size, stat.st_mtime_ns
                except OSError:  # a link to nothing
                    yield place, -1, -1


def _read(folder: Path, made_from: dict[str, Any], warn: bool = False) -> tuple[Corpus, str] | None:
    """Returns what a cache holds; `None` if there is none, or if it is out of date or damaged."""
    if not folder.exists():
        return None
    try:
        facts = json.loads((folder / _FACTS).read_text())
        if facts.pop("sha256") != _sha256(facts):
            raise ValueError(f"{_FACTS} has changed")
        if facts["made_from"] != made_from:
            return None
        for name, digest in facts["files"].items():
            if sha256_file(folder / name) != digest:
                raise ValueError(f"{name} has changed")
        train, test = (_mapped(folder, split) for split in ("train", "test"))
        outside = np.load(folder / "outside.npy") if "outside.npy" in facts["files"] else None
        return Corpus(train, test, tuple(facts["class_names"]), outside), facts["digest"]
    except (FcilbenchError, OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        if warn:
            _log.warning("%s is damaged and made again: %s", folder, error)
        return None


def _mapped(folder: Path, split: str) -> Samples:
    inputs: npt.NDArray[Any] = np.load(folder / f"{split}.npy", mmap_mode="c")
    labels: npt.NDArray[np.int64] = np.load(folder / f"{split}-labels.npy")
    return Samples(inputs, labels)


def _write(folder: Path, corpus: Corpus, facts: dict[str, Any], progress: Callable[[int, int], None] | None) -> None:
    """Writes a cache under a temporary name and renames it; leaves nothing behind if it cannot."""
    splits = {"train": corpus.train, "test": corpus.test}
    total = len(corpus.train) + len(corpus.test)
    _leave_room(
        folder.parent, sum(math.prod(each.inputs.shape) * each.inputs.dtype.itemsize for each in splits.values())
    )
    for left_over in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a process that was killed; we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        done = itertools.count(1)
        for split, samples in splits.items():
            _save(temporary / f"{split}-labels.npy", samples.labels)
            _save(temporary / f"{split}.npy", samples.inputs, lambda: progress and progress(next(done), total))
        if corpus.outside is not None:
            _save(temporary / "outside.npy", corpus.outside)
        files = {path.name: sha256_file(path) for path in sorted(temporary.iterdir())}
        body = {**facts, "files": files, "class_names": corpus.class_names}
        write_atomic(temporary / _FACTS, json.dumps({**body, "sha256": _sha256(body)}, indent=1))
        temporary.chmod(0o755)  # mkdtemp's 0700 would lock collaborators out of a shared folder
        if folder.exists():
            # Renamed into a name that the next maker removes, should this one die here.
            folder.rename(temporary.with_name(f".{folder.name}.stale{os.getpid()}.tmp"))
        temporary.rename(folder)
        for stale in folder.parent.glob(f".{folder.name}.stale*.tmp"):
            shutil.rmtree(stale, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(path: Path, rows: LazyInputs | npt.NDArray[Any], report: Callable[[], Any] = lambda: None) -> None:
    """Writes a `.npy` file row by row: never through a memory map, where a full disk is a signal that kills."""
    header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": rows.shape}
    with replacing(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for row in rows:
            file.write(np.ascontiguousarray(row).data)
            report()


def _sha256(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _leave_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a cache; the system frees it when its owner dies."""
    with folder.with_name(f".{folder.name}.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("%s: another process decodes it; waiting", folder.name)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
