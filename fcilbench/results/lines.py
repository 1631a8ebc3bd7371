"""Files of JSON lines that travel: one record a line, with a checksum as its last key.

`rows.jsonl`, `curves.jsonl`, `environments.jsonl` and `suites.jsonl` are such files. The checksum is the SHA-256 of the
line without it, so that a line that was damaged on its way is told and never read as something else; lines of before
there were checksums have none. It protects from accidents, not from forgers: they write a new one. Lines are appended
under a lock and synced, so a process may die at any moment, and the next one sees every line that was finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from fcilbench.files import sync_folder, write_all
from fcilbench.results.foreign import (
    CURVE,
    MAX_LINES,
    RECORD,
    DamagedError,
    Limit,
    check_size,
    open_regular,
    parse_json,
    refuse,
    refuse_links,
)

_log = logging.getLogger(__name__)
_CHECKSUM = re.compile(rb'\s*,\s*"checksum"\s*:\s*"([0-9a-f]{64})"\s*\}\s*\Z')
_TAIL = 200
"""Bytes at the end of a line in which its checksum stands."""
_CHUNK = 2**23
_MOST_TOLD = 20
_DAMAGED = (
    "its checksum does not fit, so it was damaged or edited; copy the file again from where it came from, or delete "
    "the checksum if the line is right"
)


def seal(content: bytes) -> bytes:
    """Returns the line of a JSON object that is not empty: with its checksum and the newline."""
    content = content.strip()
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:-1] + b',"checksum":"' + digest + b'"}\n'


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file.

    Attributes:
        number: Counted from 1.
        offset: Its first byte in the file.
        data: Its bytes, without the newline; of a line that is too long only the beginning.
        finished: Whether the newline is there; a last line without it may still be in the making.
        limit: What it may hold.
        size: Number of its bytes.
    """

    number: int
    offset: int
    data: bytes
    finished: bool
    limit: Limit
    size: int

    def content(self) -> bytes:
        """Returns its JSON text without the checksum; it is not parsed.

        Raises:
            DamagedError: If its checksum does not fit, or it holds more than its limit.
        """
        check_size(self.data, self.limit)
        found = _CHECKSUM.search(self.data, max(0, len(self.data) - _TAIL))
        if found is None:
            return self.data
        content = self.data[: found.start()] + b"}"
        if hashlib.sha256(content).hexdigest().encode() != found[1]:
            raise DamagedError(_DAMAGED)
        return content

    def place(self) -> Line:
        """Returns the line without its bytes, which `again` reads."""
        return replace(self, data=b"")

    def again(self, file: IO[bytes]) -> Line:
        """Returns the line with its bytes, read again from its file."""
        file.seek(self.offset)
        return replace(self, data=file.read(self.size))


def read_lines(root: Path, name: str, limit: Limit = RECORD) -> Iterator[Line]:
    """Yields the lines of a file of a folder, without blank ones; nothing if there is no such file.

    Raises:
        RefusedError: If it is no regular file, or has too many bytes or lines.
    """
    try:
        file = open_regular(root, name)
    except FileNotFoundError:
        return
    offset = 0
    with file:
        for number, line in enumerate(iter(lambda: file.readline(limit.size + 2), b""), start=1):
            if number > MAX_LINES:
                refuse(root / name, f"has more than {MAX_LINES:,} lines")
            data, length = line, len(line)
            while len(data) > limit.size + 1 and not data.endswith(b"\n"):  # the rest of a line that is too long
                data = file.readline(_CHUNK)
                length += len(data)
                if not data or data.endswith(b"\n"):
                    break
            if line.strip():
                kept = line.removesuffix(b"\n")
                yield Line(number, offset, kept, data.endswith(b"\n"), limit, len(kept))
            offset += length


class Telling:
    """Warns of what is left out of a file; of many lines, only of the first ones and how many there are."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0

    def left_out(self, number: int, what: str) -> None:
        """Warns of a line; `what` begins with a verb."""
        self._count += 1
        if self._count <= _MOST_TOLD:
            _log.warning("%s:%d %s", self._path, number, what)

    def end(self) -> None:
        """Says how many more there are."""
        if self._count > _MOST_TOLD:
            _log.warning("%s: %d more lines are left out", self._path, self._count - _MOST_TOLD)


@contextmanager
def locked(root: Path, name: str) -> Iterator[int]:
    """Opens a file of a folder for appending, makes both if need be, and holds its lock.

    Raises:
        OSError: If that is not possible here.
        RefusedError: If the file is a link or no regular file.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / name
    refuse_links(root, name)
    created = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            refuse(path, "is no regular file")
        fcntl.flock(handle, fcntl.LOCK_EX)
        if created:
            sync_folder(root)
        yield handle
    finally:
        os.close(handle)  # closing releases the lock


def append_lines(root: Path, name: str, contents: Iterable[bytes]) -> None:
    """Appends JSON objects to a file of a folder, each as a line with its checksum, with one sync for all."""
    with locked(root, name) as handle:
        _set_torn_tail_aside(root / name, handle)
        batch: list[bytes] = []
        size = 0
        for content in contents:
            batch.append(seal(content))
            size += len(batch[-1])
            if size > _CHUNK:
                write_all(handle, b"".join(batch))
                batch, size = [], 0
        write_all(handle, b"".join(batch))
        os.fsync(handle)


def _set_torn_tail_aside(path: Path, handle: int) -> None:
    """Moves an unfinished last line to `<name>.torn`, so that the next one starts on a new line."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return
    with path.open("rb") as file:
        tail = deque(file, maxlen=1).pop()
    with suppress(DamagedError):
        if isinstance(parse_json(tail, CURVE), dict):
            write_all(handle, b"\n")  # only the newline is missing
            return
    torn_path = path.with_suffix(".torn")
    refuse_links(path.parent, torn_path.name)
    with open(torn_path, "ab") as torn:
        torn.write(tail + b"\n")
    os.ftruncate(handle, size - len(tail))
    _log.warning("%s ended in an unfinished line of %d bytes; moved to %s", path, len(tail), torn_path.name)


class Records:
    """The records of one file of lines by the text of their first key; the last line of a key counts.

    Args:
        root: The folder.
        name: The file.
        key: The first key of every line, e.g. `cell_id`.
        limit: What a line may hold.
    """

    def __init__(self, root: Path, name: str, key: str, limit: Limit = RECORD) -> None:
        self.root, self.name, self._limit = root, name, limit
        self._pattern = re.compile(rb'\{\s*"%b"\s*:\s*"([\w:.-]{1,100})"\s*,' % key.encode())
        self._seen: object = None
        self._places: dict[str, Line] = {}

    def where(self, key: str) -> str:
        """Returns `file:line` of a key that is here; the file is relative to the folder."""
        return f"{self.name}:{self._index()[key].number}"

    def __contains__(self, key: str) -> bool:
        """Says whether there is a line with this key; it may be damaged."""
        return key in self._index()

    def content(self, key: str) -> bytes | None:
        """Returns the JSON text of a record; `None` if there is none.

        Raises:
            DamagedError: If its line is damaged.
        """
        if key not in self:
            return None
        with open_regular(self.root, self.name) as file:
            return self._places[key].again(file).content()

    def append(self, contents: Iterable[bytes]) -> None:
        """Appends records, whose JSON begins with their key."""
        append_lines(self.root, self.name, contents)

    def _index(self) -> dict[str, Line]:
        """Returns the place of the line of each key; the file is read again if it has changed."""
        try:
            found = os.stat(self.root / self.name, follow_symlinks=False)
            seen: object = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            seen = None
        if seen != self._seen or seen is None:
            places, telling = {}, Telling(self.root / self.name)
            for line in read_lines(self.root, self.name, self._limit) if seen else ():
                key = self._pattern.match(line.data)
                if key is not None and (line.finished or line.data.endswith(b'"}')):  # or it is still being written
                    places[key[1].decode()] = line.place()
                elif key is None and line.finished:
                    telling.left_out(line.number, "has no key of this file and is left out")
            telling.end()
            self._places, self._seen = places, seen
        return self._places
