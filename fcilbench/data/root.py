"""Where data and weights lie on this machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs

from fcilbench.errors import PrerequisiteError

ENVIRONMENT = "FCILBENCH_DATA"


def data_root(option: Path | None = None) -> Path:
    """Returns the folder that holds data sets and `weights/`; it need not exist yet.

    Args:
        option: Value of `--data`; wins over the environment variable `FCILBENCH_DATA`, which wins over the user cache.

    Returns:
        An absolute path, so that processes with other working directories agree on it.
    """
    chosen = option or os.environ.get(ENVIRONMENT) or platformdirs.user_cache_path("fcilbench") / "data"
    return Path(chosen).expanduser().absolute()


def find_weights(name: str, root: Path | None = None) -> Path:
    """Finds a weights file that a suite names.

    Args:
        name: An absolute path, else relative to the current directory, else to `weights/` under the data root.
        root: The data root; `data_root()` if not given.

    Returns:
        The absolute path of an existing file.

    Raises:
        PrerequisiteError: If it is at none of these places; the message names them.
    """
    given = Path(name).expanduser()
    shelf = (data_root() if root is None else root.absolute()) / "weights"
    # Joining an absolute path yields that path, so an absolute name has one place.
    places = list(dict.fromkeys([given.absolute(), shelf / given]))
    for place in places:
        if place.is_file():
            return place
    raise PrerequisiteError(
        f"weights file {name!r} not found; looked at {', '.join(map(str, places))}",
        hint=f"put the file into {shelf} (set --data or {ENVIRONMENT} to use another data root), or give its full path",
    )


def sha256_file(path: Path) -> str:
    """Returns the SHA-256 of a file's content as 64 hexadecimal digits.

    Raises:
        PrerequisiteError: If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PrerequisiteError(f"cannot read {path}: {error.strerror or error}") from error
