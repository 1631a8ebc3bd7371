"""Files that survive a crash: atomic replacement and JSON lines with a torn end."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: str | bytes, *, exclusive: bool = False) -> bool:
    """Writes a file under a temporary name in its folder, syncs it and renames it.

    Args:
        path: Final name; missing folders are created.
        content: Text (stored as UTF-8) or bytes.
        exclusive: Leave a file that exists already as it is.

    Returns:
        Whether this call put the file there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would lock collaborators out of a shared folder
        if exclusive:
            try:
                os.link(name, path)
            except FileExistsError:
                return False
        else:
            os.replace(name, path)
        sync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
    return True


def sync_folder(folder: Path) -> None:
    """Makes a folder's new entries durable, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def read_json_lines(path: Path) -> Iterator[tuple[int, Any, bool]]:
    """Yields the lines of a JSON-lines file that another process may be writing.

    Args:
        path: The file; a missing one has no lines.

    Yields:
        `(line number from 1, value, is_tail)`. The value is the `ValueError` of a line that is not JSON. `is_tail`
        marks a last line without its newline: it may be unfinished.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except ValueError as error:
            value = error
        yield number, value, number == len(lines)
