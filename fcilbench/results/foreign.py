"""Files that somebody else may have written: what of them is read, and how much at most.

A results folder that was submitted, downloaded or copied is hostile until it is read through this module: regular files
only, nothing behind a link (the folder itself may be one, since the user named it), and never more than the limits
below. They are far above what training writes: 20,000 rows are 131 MB, a row of 100 tasks under all task identities
has 20,000 values, the curve of 100 tasks of 100 rounds is 3 MB. An honest folder meets one of them with more than about
300,000 rows of usual length, a million rows, or a cell of more than 200,000 rounds; it then has to be published as
several folders.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, NoReturn

from pydantic_core import from_json

from fcilbench.errors import UsageError

MAX_FILE = 2 * 2**30
"""Most bytes of a file of lines, and of a log that `results merge` copies."""
MAX_LINES = 1_000_000
"""Most lines of a file."""
MAX_DEPTH = 200
"""Deepest nesting of JSON values: that of pydantic's parser, which reads the rows."""
MAX_FILES = 1_000
"""Most files of one cell that `results merge` copies."""


class Limit(NamedTuple):
    """The most that one record may hold.

    Attributes:
        size: Bytes.
        values: Values of lists and maps; they are counted by their commas and brackets, also by those in texts.
    """

    size: int
    values: int


RECORD = Limit(4 * 2**20, 250_000)
"""Limit of a row, an environment, a resolved suite, and an event of a curve."""
CURVE = Limit(64 * 2**20, 2_500_000)
"""Limit of a cell's whole curve."""


class RefusedError(UsageError):
    """A file that is not read or written as a whole: a link, a folder, a device, or more than its limit."""


class DamagedError(ValueError):
    """A record that must not be used; the text says why, for the line that it stands in."""


def open_regular(root: Path, name: str, most: int = MAX_FILE) -> IO[bytes]:
    """Opens a file of a folder to read it.

    Args:
        root: The folder.
        name: Path of the file in it, with slashes.
        most: Most bytes that it may hold.

    Raises:
        FileNotFoundError: If there is no such file, or no such folder.
        RefusedError: If it or a folder on the way to it is a link, or it is no regular file, or too large.
    """
    *folders, last = PurePosixPath(name).parts
    try:
        place = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(root)) from error
    try:
        for folder in folders:
            _check(os.stat(folder, dir_fd=place, follow_symlinks=False), root / name, stat.S_ISDIR)
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        _check(os.stat(last, dir_fd=place, follow_symlinks=False), root / name, stat.S_ISREG)
        handle = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    finally:
        os.close(place)
    try:
        found = os.fstat(handle)
        _check(found, root / name, stat.S_ISREG)  # it may have been replaced since it was looked at
        if found.st_size > most:
            refuse(root / name, f"has {found.st_size:,} bytes, more than the {most:,} that are read")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(root: Path, name: str, most: int) -> bytes | None:
    """Returns the content of a file of a folder, or `None` if there is none; see `open_regular`."""
    try:
        with open_regular(root, name, most) as file:
            return file.read(most)
    except FileNotFoundError:
        return None


def refuse_links(root: Path, name: str) -> None:
    """Makes sure that what is written to a path of a folder stays in it; the path need not exist.

    Raises:
        RefusedError: If the path, or a folder on the way to it, is a link.
    """
    path = root
    for part in PurePosixPath(name).parts:
        path = path / part
        if path.is_symlink():
            refuse(path, "is a link")


def refuse(path: Path, what: str) -> NoReturn:
    """Raises `RefusedError` for a path."""
    hint = "a results folder holds files of its own: `fcilbench results export` writes such a folder"
    raise RefusedError(f"{path} {what}", hint=hint)


def _check(found: os.stat_result, path: Path, kind: Any) -> None:
    if stat.S_ISLNK(found.st_mode):
        refuse(path, "is a link, or lies behind one")
    if not kind(found.st_mode):
        refuse(path, "is a folder" if stat.S_ISDIR(found.st_mode) else "is no regular file, or lies in none of folders")


def parse_json(text: bytes, limit: Limit = RECORD) -> Any:
    """Returns a JSON value.

    Raises:
        DamagedError: If it is none, or holds more or is nested deeper than the limits.
    """
    check_size(text, limit)
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        first = error
    try:  # Python's parser also reads half a character (a lone surrogate), which an old environment may hold
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise DamagedError(f"not JSON: {first}") from first
    if _deeper(value, MAX_DEPTH):
        raise DamagedError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def check_size(text: bytes, limit: Limit) -> None:
    """Raises `DamagedError` if a JSON text has more bytes or values than a limit."""
    if len(text) > limit.size:
        raise DamagedError(f"longer than {limit.size:,} bytes")
    if len(text) > limit.values and sum(map(text.count, (b",", b"[", b"{"))) > limit.values:
        raise DamagedError(f"more than {limit.values:,} values")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _deeper(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_deeper(each, depth - 1) for each in inner if isinstance(each, dict | list))
