"""Finds data and weights on this machine, and what is missing. Imports neither torch nor numpy."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.errors import DataError
from fcilbench.shipped import named

ENVIRONMENT = "FCILBENCH_DATA"
ARCHIVES = "archives"
"""Folder under the data root for archives, fetched or put there by hand."""

Layouts = Sequence[Sequence[str]]
"""Alternatives; each is the paths under the data root that must all be there."""

_noted: list[dict[Path, None]] = []
"""Of each `lookups` block that is open, the paths that it has collected, in order."""


def data_root(option: Path | None = None) -> Path:
    """Returns the folder that holds data sets and `weights/`, as an absolute path; it need not exist yet.

    Args:
        option: Value of `--data`; wins over the environment variable `FCILBENCH_DATA`, which wins over the user cache.
    """
    chosen = option or os.environ.get(ENVIRONMENT)
    if not chosen:
        import platformdirs  # only here: the command line imports this module at its start

        chosen = platformdirs.user_cache_path("fcilbench") / "data"
    return Path(chosen).expanduser().absolute()


def use_data_root(value: Path | None) -> Path:
    """Returns the data root and puts it into the environment, where plugins and worker processes look for it."""
    root = data_root(value)
    os.environ[ENVIRONMENT] = str(root)
    return root


@contextlib.contextmanager
def lookups() -> Iterator[dict[Path, None]]:
    """Collects the paths on which the answers of `find_data` and `find_weights` within the block depend, in order.

    They are the places that were looked at, found or not: a file that is put there later is found instead. For a file
    within a named folder, such as `bert/config.json`, the folder is one too: a model is all that its folder holds.
    """
    found: dict[Path, None] = {}
    _noted.append(found)
    try:
        yield found
    finally:
        _noted.pop()


def _note(path: Path) -> None:
    for found in _noted:
        found[path] = None


def find_weights(name: str) -> Path:
    """Finds a weights file: an absolute path, else relative to here, else to `weights/` under the data root.

    The weights that come with the package are found by their name.

    Raises:
        DataError: If it is at none of these places; the message names them.
    """
    found = _find(name, data_root() / "weights", Path.is_file, "weights file ", named(Path(name), "weights"))
    if Path(name).parent != Path():
        _note(found.parent)
    return found


def find_data(name: str) -> Path:
    """Finds a file or folder of the user's own data: an absolute path, else relative to here, else to the data root.

    Raises:
        DataError: If it is at none of these places; the message names them.
    """
    return _find(name, data_root(), Path.exists)


def _find(name: str, folder: Path, there: Callable[[Path], bool], what: str = "", shipped: Path | None = None) -> Path:
    given = Path(name).expanduser()
    places = list(dict.fromkeys([given.absolute(), folder / given]))  # of an absolute path, that path alone
    for place in [*places, *([shipped] if shipped else [])]:
        _note(place)
        if there(place):
            return place
    hint = f"put it into {folder} (--data or {ENVIRONMENT} sets another data root), or give its full path"
    raise DataError(f"{what}{name!r} not found; looked at {', '.join(map(str, places))}", hint=hint)


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Returns the digest of a file's content in hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def find_layout(layouts: Layouts, root: Path) -> tuple[Path, ...] | None:
    """Returns the paths of the first alternative that is there, or `None`; does not look into files."""
    for layout in layouts:
        paths = tuple(root / part for part in layout)
        if all(path.exists() for path in paths):
            return paths
    return None


def describe_layouts(layouts: Layouts, root: Path) -> str:
    """Returns the alternatives as words.

    Example:
        >>> describe_layouts([["a/train", "a/test"], ["b"]], Path("/data"))
        '/data/a/train and /data/a/test; or /data/b'
    """
    return "; or ".join(" and ".join(str(root / part) for part in layout) for layout in layouts)


@dataclass(frozen=True)
class MissingData:
    """A data set that is not on this machine: a path that it lacks, size of the download if known, how to get it."""

    name: str
    place: str
    bytes: int | None
    how: str

    def __str__(self) -> str:
        size = "" if self.bytes is None else f", {self.bytes / 1e9:.2f} GB to download"
        return f"data set {self.name} (no {self.place}{size}): {self.how}"


def missing_data(facts: Mapping[str, dict[str, Any]], root: Path | None = None) -> dict[str, MissingData]:
    """Returns by label the data sets whose files are not under the data root, without looking into the files.

    `facts` are those of plugins by `<axis>:<label>`, as the expansion of a suite has them. A data set that declares no
    files is never missing.
    """
    found, root = {}, data_root(root)
    for key, declared in sorted(facts.items()):
        layouts, archives = declared.get("layouts"), declared.get("archives") or []
        if not key.startswith("dataset:") or not layouts or find_layout(layouts, root):
            continue
        place = next(root / part for part in layouts[0] if not (root / part).exists())
        name, sizes = declared["plugin"], [archive["size"] for archive in archives]
        fetchable = bool(archives) and all(archive["url"] for archive in archives)
        by_hand = f"put it there by hand, from {declared.get('homepage', '')}"
        known = sum(sizes) if sizes and None not in sizes else None
        how = f"fcilbench data fetch {name} --data {shlex.quote(str(root))}" if fetchable else by_hand
        found[key.partition(":")[2]] = MissingData(name, str(place), known, how)
    return found


def download_bytes(missing: Sequence[MissingData]) -> int | None:
    """Returns the bytes to download for all of them; `None` if the size of one is not known."""
    sizes = [each.bytes for each in missing]
    return None if None in sizes else sum(filter(None, sizes))
