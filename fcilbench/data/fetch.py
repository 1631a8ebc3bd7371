"""A data set from its official source: downloaded or put there by hand, verified, unpacked. Never imports torch."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from fcilbench.data.root import ARCHIVES, describe_layouts, find_layout
from fcilbench.errors import DataError
from fcilbench.spec.archive import Archive

if TYPE_CHECKING:
    import requests  # at run time it is imported where it is used: that takes a tenth of a second

Progress = Callable[[str, int, int | None], None]
"""Called with the name of an archive, the number of bytes that are here, and of all bytes, if known."""

_BLOCK = 1 << 20
_TIMEOUT = (15, 60)  # seconds to connect, and between two blocks
_ATTEMPTS = 5


def fetch(
    name: str, facts: Mapping[str, Any], root: Path, *, offline: bool = False, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Puts a data set under the data root.

    A data set that is there is left alone, and a valid archive is not fetched again: neither uses the network.

    Args:
        name: Name of the data set.
        facts: What its plugin declares: `layouts`, `archives`, `by_hand`, `homepage`.
        root: The data root.
        offline: Refuse the network.
        progress: Called while an archive is fetched.

    Returns:
        Where it is; empty if it needs no files.

    Raises:
        DataError: If it cannot be had; the message names data set and address, the hint what to put where by hand.
    """
    layouts = facts.get("layouts", [])
    archives = [Archive(**each) for each in facts.get("archives", [])]
    found = find_layout(layouts, root)
    if found is not None or not (layouts or archives):
        return found or ()
    if not archives:
        hint = f"get it from {facts['homepage']} and put it at {describe_layouts(layouts, root)}"
        raise DataError(f"{name}: its plugin declares no archive to fetch", hint=hint)
    by_hand = facts.get("by_hand") or f"see {facts['homepage']}"
    shelf = _Shelf(name, root / ARCHIVES, by_hand, describe_layouts(layouts, root), offline)
    shelf.check_by_hand([archive for archive in archives if not archive.url])
    for archive in archives:
        shelf.provide(archive, progress)
    in_the_way: list[Path] = []
    for archive in archives:
        try:
            kept = unpack(root / ARCHIVES / archive.file, root / archive.folder, _wanted(layouts, archive))
        except DataError as error:
            raise DataError(f"{name}: {error.message}", hint=error.hint) from error
        in_the_way += [root / archive.folder / each for each in kept]
    found = find_layout(layouts, root)
    if found is None:
        advice = f"move {', '.join(map(str, in_the_way))} out of the way and try again" if in_the_way else None
        raise DataError(f"{name}: unpacked, but there is no {describe_layouts(layouts, root)}", hint=advice)
    return found


def _wanted(layouts: Sequence[Sequence[str]], archive: Archive) -> set[str]:
    """Returns the names at the top of the archive's folder that some layout has."""
    base = PurePosixPath(archive.folder)
    paths = [PurePosixPath(part) for layout in layouts for part in layout]
    return {path.relative_to(base).parts[0] for path in paths if path.is_relative_to(base) and path != base}


@dataclass(frozen=True)
class _Shelf:
    """The folder of archives, for one data set."""

    name: str
    folder: Path
    by_hand: str
    unpacked: str
    offline: bool

    def check_by_hand(self, archives: Sequence[Archive]) -> None:
        """Makes sure that archives without an address are in the folder; names all that are not."""
        missing = [archive for archive in archives if not (self.folder / archive.file).exists()]
        if missing:
            files = ", ".join(archive.file for archive in missing)
            message = f"{self.name}: {files} cannot be fetched automatically: {self.by_hand.rstrip(':;')}"
            raise DataError(message, hint=self._advice(missing))

    def provide(self, archive: Archive, progress: Progress | None) -> None:
        """Makes sure that a valid archive is in the folder."""
        place = self.folder / archive.file
        if place.exists():
            found = _checksum(place, archive)
            if found != archive.checksum:
                size = "" if archive.size is None else f" and {archive.size} bytes"
                held = f"{place} has {found} and {place.stat().st_size} bytes"
                hint = "it was left as it is; remove it to fetch it, or put the official file in its place"
                raise DataError(f"{self.name}: {held}, the official file has {archive.checksum}{size}", hint=hint)
            return
        try:
            if self.offline:
                raise DataError("not fetched, since --offline refuses the network")
            _download(archive, self.folder, progress)
        except DataError as error:
            raise DataError(f"{self.name}: {archive.url}: {error.message}", hint=self._advice([archive])) from error

    def _advice(self, archives: Sequence[Archive]) -> str:
        files = ", ".join(f"{each.file} ({each.checksum}, published by {each.published})" for each in archives)
        again = f"run `fcilbench data fetch {self.name}` again"
        return f"put {files} into {self.folder} and {again}; or put the data themselves at {self.unpacked}"


def _checksum(path: Path, archive: Archive) -> str:
    algorithm = archive.checksum.partition(":")[0]
    try:
        with path.open("rb") as file:
            return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _download(archive: Archive, folder: Path, progress: Progress | None) -> None:
    """Fetches an archive, complete and with the published checksum, or leaves nothing under its name.

    What a broken transfer leaves is kept as `.<file>.part` if the server can go on from there, and no other way. TLS
    certificates and the checksum are always verified.

    Raises:
        DataError: If it cannot be had; the message is the reason, in words that follow its address.
    """
    import requests

    part = folder / f".{archive.file}.part"
    transfer = _Transfer(archive, progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError("another process is fetching it") from None
            transfer.run(file)
        if _checksum(part, archive) != archive.checksum:
            transfer.worth_keeping = False
            raise DataError(f"what came does not have the published checksum {archive.checksum}")
        part.replace(folder / archive.file)
    except requests.exceptions.SSLError as error:
        raise DataError(f"its certificate cannot be verified ({' '.join(str(error).split())})") from error
    except requests.exceptions.Timeout as error:
        raise DataError("no answer in time") from error
    except requests.exceptions.RequestException as error:
        raise DataError(f"cannot be reached ({' '.join(str(error).split())})") from error
    except OSError as error:  # a full disk is not helped by what fills it
        transfer.worth_keeping = False
        raise DataError(f"cannot be written to {folder} ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            if not transfer.worth_keeping or part.stat().st_size == 0:
                part.unlink()


class _TransferError(DataError):
    """A transfer that may go on where it ended."""


class _Transfer:
    """Fetches an archive into a file, over several requests if need be.

    Attributes:
        worth_keeping: Whether what is in the file is a beginning that the server can continue.
    """

    def __init__(self, archive: Archive, progress: Progress | None) -> None:
        self._archive, self._progress = archive, progress
        self.worth_keeping = True  # until this run has changed it

    def run(self, file: BinaryIO) -> None:
        """Continues the file to its end; tries again as long as a request brings something."""
        if self._archive.size is not None and file.tell() > self._archive.size:
            file.truncate(0)
        for attempt in range(_ATTEMPTS):
            before = _size(file)
            if before == self._archive.size:
                return
            try:
                self._request(file)
                return
            except _TransferError:
                if not self.worth_keeping or _size(file) <= before or attempt == _ATTEMPTS - 1:
                    raise

    def _request(self, file: BinaryIO) -> None:
        import requests

        start = _size(file)
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        with requests.get(self._archive.url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
            goes_on = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT or not goes_on:
                self.worth_keeping = False
                start = 0
                file.truncate(0)
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise DataError("it is not the file that was begun; try again")
            if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise DataError(f"the server answers {answer.status_code} {answer.reason}")
            if answer.headers.get("Content-Type", "").startswith("text/html"):
                raise DataError("the server answers with a web page instead of the file")
            self._receive(answer, file, start)

    def _receive(self, answer: requests.Response, file: BinaryIO, start: int) -> None:
        from urllib3.exceptions import HTTPError

        length = answer.headers.get("Content-Length", "")
        offered = start + int(length) if length.isdigit() else None
        expected = self._archive.size or offered
        if offered is not None and offered != expected:
            raise DataError(f"the server offers {offered} bytes, the file has {expected}")
        self.worth_keeping = start > 0 or answer.headers.get("Accept-Ranges") == "bytes"
        done = start
        with suppress(HTTPError):  # the count tells how far it came
            for block in answer.raw.stream(_BLOCK, decode_content=False):
                file.write(block)
                done += len(block)
                if expected is not None and done > expected:
                    self.worth_keeping = False
                    raise DataError(f"the server sends more than the {expected} bytes of the file")
                if self._progress is not None:
                    self._progress(self._archive.file, done, expected)
        file.flush()
        if expected is not None and done < expected:
            raise _TransferError(f"the transfer broke off after {done} of {expected} bytes")


def _size(file: BinaryIO) -> int:
    file.flush()
    return file.seek(0, 2)


def unpack(archive: Path, folder: Path, wanted: Collection[str]) -> list[str]:
    """Unpacks the wanted entries of an archive; each appears under its name complete or not at all.

    Args:
        archive: A zip file, a tar file in any compression, or a plain file, which is its own entry.
        folder: Where they go.
        wanted: Names at the top of the archive; the rest is left out.

    Returns:
        Names that are in `folder` already and were left as they are.

    Raises:
        DataError: If it is damaged, has nothing wanted, would write elsewhere, or does not fit on the disk.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{archive.name}.", suffix=".tmp", dir=folder))
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        _extract(archive, temporary)
        held = sorted(path.name for path in temporary.iterdir())
        found = [name for name in held if name in wanted]
        if not found:
            raise DataError(f"{archive} holds {', '.join(held[:5]) or 'nothing'}, expected {', '.join(sorted(wanted))}")
        in_the_way = [name for name in found if (folder / name).exists()]
        for name in found:
            if name not in in_the_way:
                (temporary / name).rename(folder / name)
        return in_the_way
    except OSError as error:
        raise DataError(f"cannot unpack {archive} into {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                for name in file.namelist():
                    path = PurePosixPath(name.replace("\\", "/"))
                    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                        raise DataError(f"{archive} is refused: {name!r} would be written outside the destination")
                file.extractall(folder)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        else:
            shutil.copyfile(archive, folder / archive.name)
    except tarfile.FilterError as error:
        raise DataError(f"{archive} is refused: {error}") from error
    except (OSError, DataError):
        raise
    except Exception as error:  # a damaged archive raises whatever its reader trips over
        raise DataError(f"{archive} is damaged: {' '.join(str(error).split()) or type(error).__name__}") from error
