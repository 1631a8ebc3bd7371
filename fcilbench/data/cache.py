"""Decoded data sets on disk: numbered, memory-mapped, made once and made again when their files change.

A cache is a folder `datasets/<class>-<key>/` in the cache folder. It appears under its name complete or not at all, and
one process makes it while the others wait.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fcilbench.api.content import Listing, Progress, Source
from fcilbench.api.dataset import Corpus, Dataset, Samples
from fcilbench.data.freshness import key, now
from fcilbench.registry.cache import CACHE, cache_root

_log = logging.getLogger(__name__)
_FACTS = "cache.json"
_REPORT_SECONDS = 10.0


def open_cached(
    dataset: Dataset, root: Path, progress: Progress | None = None, *, fresh: bool = False
) -> tuple[Corpus, str]:
    """Opens a data set from its cache, which is made first if there is none or its sources have changed.

    Where the cache folder cannot be written or is full, the data set is decoded into memory and a warning says so.

    Args:
        dataset: A data set with `cached`.
        root: The data root.
        progress: Called with the number of samples decoded and of all samples.
        fresh: Make the cache again in any case.

    Returns:
        The corpus, memory-mapped (writing to it changes no file), and its content digest.

    Raises:
        DataError: If the data set is missing, incomplete, damaged or not the declared one.
    """
    folder = cache_root().absolute() / "datasets" / f"{type(dataset).__name__.lower()}-{key(dataset, root)}"
    made_from = now(dataset, root)
    found = None if fresh else _read(folder, made_from)
    if found is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            found = None if fresh else _read(folder, made_from)
            if found is None:
                listing, digest = dataset.numbered(root)
                _make(folder, listing, {**made_from, "digest": digest}, progress)
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
    if found is not None:
        return found
    listing, digest = dataset.numbered(root)
    return Corpus(listing.train.samples(), listing.test.samples(), listing.class_names, listing.outside), digest


def _read(folder: Path, made_from: dict[str, Any]) -> tuple[Corpus, str] | None:
    try:
        facts = json.loads((folder / _FACTS).read_text())
        if any(facts.get(name) != value for name, value in made_from.items()):
            return None
        train, test = (_mapped(folder, split, facts[split]) for split in ("train", "test"))
        outside = np.load(folder / "outside.npy") if facts["outside"] else None
        return Corpus(train, test, tuple(facts["class_names"]), outside), facts["digest"]
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None  # none, or one that somebody has damaged


def _mapped(folder: Path, split: str, count: int) -> Samples:
    inputs: npt.NDArray[Any] = np.load(folder / f"{split}.npy", mmap_mode="c")
    labels: npt.NDArray[np.int64] = np.load(folder / f"{split}-labels.npy")
    if len(inputs) != count or len(labels) != count:
        raise ValueError(f"{split} holds {len(inputs)} inputs and {len(labels)} labels, not {count}")
    return Samples(inputs, labels)


def _make(folder: Path, listing: Listing, facts: dict[str, Any], progress: Progress | None) -> None:
    """Writes a cache under a temporary name and renames it; leaves nothing behind if it cannot."""
    splits = {"train": listing.train, "test": listing.test}
    _leave_room(folder.parent, sum(_nbytes(source) for source in splits.values()))
    for left_over in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a process that was killed; we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        report = _Report(folder.name, sum(len(source.labels) for source in splits.values()), progress)
        for split, source in splits.items():
            _save(temporary / f"{split}-labels.npy", source.labels)
            _write(temporary / f"{split}.npy", source, report)
        if listing.outside is not None:
            _save(temporary / "outside.npy", listing.outside)
        counts = {split: len(source.labels) for split, source in splits.items()}
        body = {**facts, **counts, "class_names": listing.class_names, "outside": listing.outside is not None}
        with (temporary / _FACTS).open("wb") as file:
            file.write(json.dumps(body, indent=1).encode())
            _sync(file)
        temporary.chmod(0o755)  # mkdtemp's 0700 would lock collaborators out of a shared folder
        if folder.exists():
            # Renamed into a name that the next maker removes, should this one die here.
            folder.rename(temporary.with_name(f".{folder.name}.stale{os.getpid()}.tmp"))
        temporary.rename(folder)
        for stale in folder.parent.glob(f".{folder.name}.stale*.tmp"):
            shutil.rmtree(stale, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(path: Path, source: Source, report: _Report) -> None:
    """Writes a `.npy` file row by row: never through a memory map, where a full disk is a signal that kills."""
    shape = (len(source.labels), *source.row_shape)
    header = {"descr": np.lib.format.dtype_to_descr(source.dtype), "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for row in source.rows():
            file.write(np.ascontiguousarray(row).data)
            report.step()
        _sync(file)


def _save(path: Path, array: npt.NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        _sync(file)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _nbytes(source: Source) -> int:
    return len(source.labels) * int(np.prod(source.row_shape)) * source.dtype.itemsize


def _leave_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed / 1e9:.2f} GB needed, {free / 1e9:.2f} GB free")


class _Report:
    """Tells a callback of every sample, and the log of how far it is now and then."""

    def __init__(self, name: str, total: int, progress: Progress | None) -> None:
        self._name, self._total, self._progress = name, total, progress
        self._done, self._said = 0, time.monotonic()

    def step(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)
        if time.monotonic() - self._said > _REPORT_SECONDS:
            self._said = time.monotonic()
            _log.info("%s: decoded %d of %d samples", self._name, self._done, self._total)


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
