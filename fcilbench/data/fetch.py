"""Fetches a data set from its official source, verifies and unpacks it. Never imports torch."""

from __future__ import annotations

import fcntl
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from fcilbench.data.root import ARCHIVES, Layouts, describe_layouts, file_digest, find_layout
from fcilbench.errors import DataError
from fcilbench.spec.archive import Archive

Progress = Callable[[str, int, int | None], None]
"""Called with the name of an archive, the number of bytes received, and of all bytes, if known."""

_BLOCK = 1 << 20
_TIMEOUT = (15, 60)  # seconds to connect, and between two blocks
_ATTEMPTS = 5


def fetch(
    name: str, facts: Mapping[str, Any], root: Path, *, offline: bool = False, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Puts a data set under the data root; the network is not used if it is there, or if its archives are.

    `facts` are what its plugin declares: `layouts`, `archives`, `by_hand`, `homepage`.

    Returns:
        Its paths; empty if it needs no files.

    Raises:
        DataError: If it cannot be fetched; the hint says which file to put where.
    """
    layouts = facts.get("layouts", [])
    archives = [Archive(**each) for each in facts.get("archives", [])]
    found = find_layout(layouts, root)
    if found is not None or not (layouts or archives):
        return found or ()
    places = describe_layouts(layouts, root)
    if not archives:
        hint = f"get it from {facts['homepage']} and put it at {places}"
        raise DataError(f"{name}: its plugin declares no archive to fetch", hint=hint)
    if missing := [each for each in archives if not each.url and not (root / ARCHIVES / each.file).exists()]:
        why = (facts.get("by_hand") or f"see {facts['homepage']}").rstrip(":;")
        files = ", ".join(each.file for each in missing)
        hint = _advice(name, missing, root, places)
        raise DataError(f"{name}: {files} cannot be fetched automatically: {why}", hint=hint)
    in_the_way: list[Path] = []
    try:
        for archive in archives:
            _provide(archive, root / ARCHIVES, offline, progress, _advice(name, [archive], root, places))
        for archive in archives:
            folder = root / archive.folder
            in_the_way += unpack(root / ARCHIVES / archive.file, folder, _wanted(layouts, archive))
    except DataError as error:
        raise DataError(f"{name}: {error.message}", hint=error.hint) from error
    found = find_layout(layouts, root)
    if found is None:
        advice = f"move {', '.join(map(str, in_the_way))} out of the way and try again" if in_the_way else None
        raise DataError(f"{name}: unpacked, but there is no {places}", hint=advice)
    return found


def _advice(name: str, archives: Sequence[Archive], root: Path, places: str) -> str:
    files = ", ".join(f"{each.file} ({each.checksum}, published by {each.published})" for each in archives)
    again = f"run `fcilbench data fetch {name}` again"
    return f"put {files} into {root / ARCHIVES} and {again}; or put the data themselves at {places}"


def _wanted(layouts: Layouts, archive: Archive) -> set[str]:
    """Returns the names directly in the archive's folder that a layout has."""
    base = PurePosixPath(archive.folder)
    paths = [PurePosixPath(part) for layout in layouts for part in layout]
    return {path.relative_to(base).parts[0] for path in paths if path.is_relative_to(base) and path != base}


def _provide(archive: Archive, folder: Path, offline: bool, progress: Progress | None, advice: str) -> None:
    """Makes sure that the folder has the archive with its published checksum."""
    place = folder / archive.file
    if place.exists():
        found = _checksum(place, archive)
        if found != archive.checksum:
            size = "" if archive.size is None else f" and {archive.size} bytes"
            held = f"{place} has {found} and {place.stat().st_size} bytes"
            hint = "it was left as it is; remove it to fetch it, or put the official file in its place"
            raise DataError(f"{held}, the official file has {archive.checksum}{size}", hint=hint)
        return
    try:
        if offline:
            raise DataError("not fetched, since --offline refuses the network")
        _download(archive, folder, progress)
    except DataError as error:
        raise DataError(f"{archive.url}: {error.message}", hint=advice) from error


def _checksum(path: Path, archive: Archive) -> str:
    algorithm = archive.checksum.partition(":")[0]
    return f"{algorithm}:{file_digest(path, algorithm)}"


def _download(archive: Archive, folder: Path, progress: Progress | None) -> None:
    """Fetches an archive; a broken transfer leaves `.<file>.part`, from which the next one continues.

    Raises:
        DataError: If it cannot be fetched; the message follows the address of the archive.
    """
    import requests  # not at the start of the command line: it takes a tenth of a second

    part, held = folder / f".{archive.file}.part", False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError("another process is fetching it") from None
            held = True
            whole, before = False, -1
            for _ in range(_ATTEMPTS):
                if whole or file.tell() <= before:  # another request would bring nothing
                    break
                before = file.tell()
                whole = _receive(archive, file, progress)
            size = file.tell()
        if not whole:
            raise DataError(f"the transfer broke off after {size} bytes")
        if _checksum(part, archive) != archive.checksum:
            part.unlink()
            raise DataError(f"what came, {size} bytes, does not have the published checksum {archive.checksum}")
        part.replace(folder / archive.file)
    except requests.RequestException as error:
        raise DataError(f"cannot be fetched ({' '.join(str(error).split())})") from error
    except OSError as error:
        part.unlink(missing_ok=True)  # a full disk is not helped by what fills it
        raise DataError(f"cannot be written to {folder} ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            if held and part.stat().st_size == 0:
                part.unlink()


def _receive(archive: Archive, file: BinaryIO, progress: Progress | None) -> bool:
    """Appends what the server sends to the file; returns whether nothing is missing, as far as sizes tell."""
    import requests
    from urllib3.exceptions import HTTPError

    start = file.tell()
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    with requests.get(archive.url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
        if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # the checksum tells whether it is all, or the beginning of another file
        answer.raise_for_status()
        if answer.status_code != HTTPStatus.PARTIAL_CONTENT:  # the server sends all of it
            start = file.seek(0)
            file.truncate()
        length = answer.headers.get("Content-Length", "")
        expected = archive.size or (start + int(length) if length.isdigit() else None)
        with suppress(HTTPError):  # of a broken connection
            for block in answer.raw.stream(_BLOCK, decode_content=False):
                file.write(block)
                if progress is not None:
                    progress(archive.file, file.tell(), expected)
    file.flush()
    return expected is None or file.tell() >= expected


def unpack(archive: Path, folder: Path, wanted: Collection[str]) -> list[Path]:
    """Unpacks the wanted entries of an archive, each under its name only once it is complete.

    The archive is a zip file, a tar file in any compression, or a plain file, which is its own entry. `wanted` are
    names at its top; the rest is left out.

    Returns:
        The entries that existed already and were left as they are.

    Raises:
        DataError: If the archive is damaged, has no wanted entry, would write elsewhere, or does not fit on the disk.
    """
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{archive.name}.", suffix=".tmp", dir=folder))
        _extract(archive, temporary)
        held = sorted(path.name for path in temporary.iterdir())
        found = [name for name in held if name in wanted]
        if not found:
            raise DataError(f"{archive} holds {', '.join(held[:5]) or 'nothing'}, expected {', '.join(sorted(wanted))}")
        in_the_way = [folder / name for name in found if (folder / name).exists()]
        for name in found:
            if folder / name not in in_the_way:
                (temporary / name).rename(folder / name)
        return in_the_way
    except DataError:
        raise
    except Exception as error:  # the reader of a damaged archive may raise anything
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"cannot unpack {archive} into {folder}: {reason}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    """Extracts an archive, which cannot write outside the folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            _extract_tar(tar, folder)
    else:
        shutil.copyfile(archive, folder / archive.name)


def _extract_tar(tar: tarfile.TarFile, folder: Path) -> None:
    """Extracts folders and files; no data set here needs links or devices.

    The standard library has a filter for this from Python 3.11.4 on, and Debian 12 has 3.11.2.

    Raises:
        tarfile.TarError: If a member would lie outside the folder, or is neither folder nor file.
    """
    root = folder.resolve()
    for member in tar:
        path = (root / member.name).resolve()
        if not path.is_relative_to(root):
            raise tarfile.TarError(f"{member.name} would lie outside its folder")
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        file = tar.extractfile(member) if member.isfile() else None
        if file is None:
            raise tarfile.TarError(f"{member.name} is neither a file nor a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with file, path.open("wb") as target:
            shutil.copyfileobj(file, target)
