"""Archives into folders: safely, and every entry complete or not at all."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from fcilbench.errors import DataError


def unpack(archive: Path, folder: Path, wanted: Collection[str]) -> list[str]:
    """Unpacks the wanted entries of an archive under temporary names and renames them.

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
        found = sorted(path.name for path in temporary.iterdir() if path.name in wanted)
        if not found:
            held = ", ".join(sorted(path.name for path in temporary.iterdir())[:5]) or "nothing"
            raise DataError(f"{archive} holds {held}, expected {', '.join(sorted(wanted))}")
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
            _extract_zip(archive, folder)
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


def _extract_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                raise DataError(f"{archive} is refused: {name!r} would be written outside the destination")
        file.extractall(folder)
