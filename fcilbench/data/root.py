"""Where data and weights lie on this machine. Imports neither torch nor numpy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

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
    places = _places(name, shelf)
    for place in places:
        if place.is_file():
            return place
    raise PrerequisiteError(
        f"weights file {name!r} not found; looked at {', '.join(map(str, places))}",
        hint=f"put the file into {shelf} (set --data or {ENVIRONMENT} to use another data root), or give its full path",
    )


def find_data(name: str) -> Path:
    """Finds a file or folder of the user's own data: an absolute path, else relative to here, else to the data root.

    Raises:
        DataError: If it is at none of these places; the message names them.
    """
    places = _places(name, data_root())
    for place in places:
        if place.exists():
            return place
    raise DataError(
        f"{name!r} not found; looked at {', '.join(map(str, places))}",
        hint=f"correct the path, or give it in full; --data or {ENVIRONMENT} sets another data root",
    )


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
