"""Files that survive a crash: atomic replacement; the neighbour of one that does not exist; and where caches lie.

Every file that another process may read, or that a crash must not leave half-written, is written through this module.
Torch-free.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

CACHE = "FCILBENCH_CACHE"
"""Environment variable: folder of the caches; unset means the user's cache folder."""


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces `path` when the block ends without an exception.

    The temporary file has a random name, lies in the same folder and is removed if the block raises.

    Args:
        path: Final name; missing folders are created.
        durable: Wait until the content is on the disk. `False` is for files that can be made again.

    Example:
        `with replacing(folder / "checkpoint.pt") as file: torch.save(state, file)`
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would lock collaborators out of a shared folder
        os.replace(name, path)
        if durable:
            sync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def write_atomic(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Replaces a file by text (UTF-8) or bytes: a reader sees the old content or the new one, see `replacing`."""
    with replacing(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all bytes to a file descriptor; one call of the system may take only a part."""
    while data:
        data = data[os.write(descriptor, data) :]


def neighbour(path: Path, pattern: str = "*") -> str:
    """Returns `" (did you mean 'x'?)"` for what lies beside a path that does not exist and is called alike, or `""`."""
    names = [each.name for each in path.parent.glob(pattern)]
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)  # the endings of suites alone make 0.6
    return f" (did you mean {close[0]!r}?)" if close else ""


def sync_folder(folder: Path) -> None:
    """Makes a folder's new entries durable, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def cache_root() -> Path:
    """Returns the folder of the caches, of plugins' descriptions and of decoded data; it need not exist."""
    override = os.environ.get(CACHE)
    if override:
        return Path(override)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fcilbench"))
