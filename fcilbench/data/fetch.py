"""A data set from its official source: found, fetched or put there by hand, verified, unpacked. Never imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fcilbench.data.layout import ARCHIVES, describe_layouts, find_layout
from fcilbench.data.unpack import unpack
from fcilbench.errors import DataError
from fcilbench.spec.archive import Archive

Progress = Callable[[str, int, int | None], None]
"""Called with the name of an archive, the number of bytes that are here, and of all bytes, if known."""


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
    in_the_way = [path for archive in archives for path in _unpack(name, archive, root, layouts)]
    found = find_layout(layouts, root)
    if found is None:
        advice = f"move {', '.join(map(str, in_the_way))} out of the way and try again" if in_the_way else None
        raise DataError(f"{name}: unpacked, but there is no {describe_layouts(layouts, root)}", hint=advice)
    return found


@dataclass(frozen=True)
class _Shelf:
    """The folder of archives, seen by one data set."""

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
        if (self.folder / archive.file).exists():
            self._verify(archive)
            return
        hint = self._advice([archive])
        if self.offline:
            raise DataError(f"{self.name}: {archive.url}: not fetched, since --offline refuses the network", hint=hint)
        from fcilbench.data.download import DownloadError, download

        def report(done: int, total: int | None) -> None:
            if progress is not None:
                progress(archive.file, done, total)

        try:
            download(archive, self.folder, report)
        except DownloadError as error:
            raise DataError(f"{self.name}: {archive.url}: {error}", hint=hint) from error

    def _advice(self, archives: Sequence[Archive]) -> str:
        files = ", ".join(f"{each.file} ({each.checksum}, published by {each.published})" for each in archives)
        again = f"run `fcilbench data fetch {self.name}` again"
        return f"put {files} into {self.folder} and {again}; or put the data themselves at {self.unpacked}"

    def _verify(self, archive: Archive) -> None:
        place = self.folder / archive.file
        hint = "it was left as it is; remove it to fetch it, or put the official file in its place"
        algorithm = archive.checksum.partition(":")[0]
        try:
            with place.open("rb") as file:
                found = f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
        except OSError as error:
            raise DataError(f"{self.name}: cannot read {place}: {error.strerror or error}") from error
        if found != archive.checksum:
            size = "" if archive.size is None else f" and {archive.size} bytes"
            held = f"{place} has {found} and {place.stat().st_size} bytes"
            raise DataError(f"{self.name}: {held}, the official file has {archive.checksum}{size}", hint=hint)


def _unpack(name: str, archive: Archive, root: Path, layouts: Sequence[Sequence[str]]) -> list[Path]:
    """Unpacks what the layouts have; returns what was there already."""
    folder = root / archive.folder
    try:
        return [folder / each for each in unpack(root / ARCHIVES / archive.file, folder, _wanted(layouts, archive))]
    except DataError as error:
        raise DataError(f"{name}: {error.message}", hint=error.hint) from error


def _wanted(layouts: Sequence[Sequence[str]], archive: Archive) -> set[str]:
    """Returns the names at the top of the archive's folder that some layout has."""
    base = PurePosixPath(archive.folder)
    paths = [PurePosixPath(part) for layout in layouts for part in layout]
    return {path.relative_to(base).parts[0] for path in paths if path.is_relative_to(base) and path != base}
