"""Archives over HTTP: resumed where the server can, verified always, under their name complete or not at all."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

import pooch
import requests
from urllib3.exceptions import HTTPError

from fcilbench.spec.archive import Archive

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes that are here and of all bytes, if known."""

_BLOCK = 1 << 20
_TIMEOUT = (15, 60)  # seconds to connect, and between two blocks
_ATTEMPTS = 5


class DownloadError(Exception):
    """An archive was not fetched; the message is the reason, in words that follow its address."""


class _BrokenOff(Exception):  # noqa: N818 -- not an end: the transfer may go on
    pass


def download(archive: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """Fetches an archive.

    What a broken transfer leaves is kept as `.<file>.part` if the server can go on from there, and no other way. TLS
    certificates and the checksum are verified, and there is no way not to.

    Args:
        archive: One with an address.
        folder: Where it goes; missing folders are made.
        progress: Called after every block.

    Returns:
        The file, complete and with the published checksum.

    Raises:
        DownloadError: If that cannot be had; nothing is under the final name then.
    """
    pooch.get_logger().setLevel(logging.WARNING)  # it tells what we tell, in other words
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fetcher = _Resuming(archive, folder / f".{archive.file}.part", progress)
        pooch.retrieve(archive.url, archive.checksum, fname=archive.file, path=folder, downloader=fetcher)
    except requests.exceptions.SSLError as error:
        raise DownloadError(f"its certificate cannot be verified ({_words(error)})") from error
    except requests.exceptions.Timeout as error:
        raise DownloadError("no answer in time") from error
    except requests.exceptions.RequestException as error:
        raise DownloadError(f"cannot be reached ({_words(error)})") from error
    except OSError as error:
        raise DownloadError(f"cannot be written to {folder} ({error.strerror or error})") from error
    except ValueError as error:  # how pooch tells a wrong checksum
        raise DownloadError(f"what came does not have the published checksum {archive.checksum}") from error
    return folder / archive.file


class _Resuming:
    """Fetches into a part file, over several requests if need be, and hands it over when it is whole."""

    def __init__(self, archive: Archive, part: Path, progress: Progress | None) -> None:
        self._archive, self._part, self._progress = archive, part, progress
        self._worth_keeping = True  # until this run has changed it

    def __call__(self, url: str, output_file: str, _pooch: object) -> None:
        """Fetches `url`; pooch then compares the checksum and renames `output_file`."""
        try:
            with self._part.open("ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise DownloadError("another process is fetching it") from None
                self._fetch(url, file)
            self._part.replace(output_file)
        except _BrokenOff as error:
            raise DownloadError(str(error)) from error
        except requests.exceptions.RequestException:
            raise
        except OSError:  # a full disk is not helped by what fills it
            self._worth_keeping = False
            raise
        finally:
            with suppress(FileNotFoundError):
                if not self._worth_keeping or self._part.stat().st_size == 0:
                    self._part.unlink()

    def _fetch(self, url: str, file: BinaryIO) -> None:
        if self._archive.size is not None and file.tell() > self._archive.size:
            file.truncate(0)
        for attempt in range(_ATTEMPTS):
            before = _size(file)
            if before == self._archive.size:
                return
            try:
                self._request(url, file)
                return
            except _BrokenOff:
                if not self._worth_keeping or _size(file) <= before or attempt == _ATTEMPTS - 1:
                    raise

    def _request(self, url: str, file: BinaryIO) -> None:
        start = _size(file)
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
            goes_on = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT or not goes_on:
                self._worth_keeping = False
                start = 0
                file.truncate(0)
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise DownloadError("it is not the file that was begun; try again")
            if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise DownloadError(f"the server answers {answer.status_code} {answer.reason}")
            if answer.headers.get("Content-Type", "").startswith("text/html"):
                raise DownloadError("the server answers with a web page instead of the file")
            self._receive(answer, file, start)

    def _receive(self, answer: requests.Response, file: BinaryIO, start: int) -> None:
        length = answer.headers.get("Content-Length", "")
        offered = start + int(length) if length.isdigit() else None
        expected = self._archive.size or offered
        if offered is not None and offered != expected:
            raise DownloadError(f"the server offers {offered} bytes, the file has {expected}")
        self._worth_keeping = start > 0 or answer.headers.get("Accept-Ranges") == "bytes"
        done = start
        try:
            for block in answer.raw.stream(_BLOCK, decode_content=False):
                file.write(block)
                done += len(block)
                if expected is not None and done > expected:
                    self._worth_keeping = False
                    raise DownloadError(f"the server sends more than the {expected} bytes of the file")
                if self._progress is not None:
                    self._progress(done, expected)
        except HTTPError:
            pass  # the count tells how far it came
        file.flush()
        if expected is not None and done < expected:
            raise _BrokenOff(f"the transfer broke off after {done} of {expected} bytes")


def _size(file: BinaryIO) -> int:
    file.flush()
    return file.seek(0, 2)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())
