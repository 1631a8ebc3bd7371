"""Where data and weights lie on this machine, and what is missing there. Imports neither torch nor numpy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.errors import DataError, PrerequisiteError

ENVIRONMENT = "FCILBENCH_DATA"
ARCHIVES = "archives"
"""Folder under the data root for archives, fetched or put there by hand."""

Layouts = Sequence[Sequence[str]]
"""Alternatives; each is the paths under the data root that must all be there."""


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


def find_weights(name: str) -> Path:
    """Finds a weights file: an absolute path, else relative to here, else to `weights/` under the data root.

    Raises:
        PrerequisiteError: If it is at none of these places; the message names them.
    """
    shelf = data_root() / "weights"
    hint = f"put the file into {shelf} (set --data or {ENVIRONMENT} to use another data root), or give its full path"
    places = _places(name, shelf)
    if found := [place for place in places if place.is_file()]:
        return found[0]
    raise PrerequisiteError(f"weights file {name!r} not found; looked at {', '.join(map(str, places))}", hint=hint)


def find_data(name: str) -> Path:
    """Finds a file or folder of the user's own data: an absolute path, else relative to here, else to the data root.

    Raises:
        DataError: If it is at none of these places; the message names them.
    """
    hint = f"correct the path, or give it in full; --data or {ENVIRONMENT} sets another data root"
    places = _places(name, data_root())
    if found := [place for place in places if place.exists()]:
        return found[0]
    raise DataError(f"{name!r} not found; looked at {', '.join(map(str, places))}", hint=hint)


def _places(name: str, shelf: Path) -> list[Path]:
    given = Path(name).expanduser()
    # Joining an absolute path yields that path, so an absolute name has one place.
    return list(dict.fromkeys([given.absolute(), shelf / given]))


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Returns the digest of a file's content in hexadecimal digits.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def find_layout(layouts: Layouts, root: Path) -> tuple[Path, ...] | None:
    """Returns the paths of the first alternative that is there, or `None`; looks at names only."""
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
    """A data set whose files are not under the data root: its plugin, the download's size if known, how to get it."""

    name: str
    bytes: int | None
    how: str

    def __str__(self) -> str:
        size = "" if self.bytes is None else f", {self.bytes / 1e9:.2f} GB to download"
        return f"data set {self.name}{size}: {self.how}"


def missing_data(facts: Mapping[str, dict[str, Any]], root: Path | None = None) -> list[MissingData]:
    """Returns the data sets that are not under the data root; looks at names only (`data verify` at content).

    Args:
        facts: Facts of plugins by `<axis>:<label>`, as a suite's expansion has them.
        root: The data root; `data_root()` if not given.
    """
    found = []
    for key, declared in sorted(facts.items()):
        layouts = declared.get("layouts")
        if key.startswith("dataset:") and layouts and find_layout(layouts, data_root(root)) is None:
            found.append(_missing(declared["plugin"], declared))
    return list(dict.fromkeys(found))


def download_bytes(missing: Sequence[MissingData]) -> int | None:
    """Returns the bytes to download for all of them; `None` if the size of one is not known."""
    sizes = [each.bytes for each in missing]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _missing(name: str, facts: Mapping[str, Any]) -> MissingData:
    archives = facts.get("archives") or []
    sizes = [archive["size"] for archive in archives]
    known = bool(sizes) and None not in sizes
    fetchable = bool(archives) and all(archive["url"] for archive in archives)
    how = f"fcilbench data fetch {name}" if fetchable else f"put it there by hand, from {facts.get('homepage', '')}"
    return MissingData(name, sum(sizes) if known else None, how)
