from __future__ import annotations

import io
import resource
import tarfile
import zipfile
from pathlib import Path

import pytest

from fcilbench.data.unpack import unpack
from fcilbench.errors import DataError


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def tar(path: Path, *entries: tarfile.TarInfo, content: bytes = b"x") -> Path:
    with tarfile.open(path, "w") as file:
        for entry in entries:
            entry.size = len(content) if entry.isreg() else 0
            file.addfile(entry, io.BytesIO(content) if entry.isreg() else None)
    return path


def link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


@pytest.mark.parametrize(
    "entries",
    [
        [tarfile.TarInfo("../evil")],
        [tarfile.TarInfo("a/../../evil")],
        [link("a", "/etc"), tarfile.TarInfo("a/evil")],
        [link("a", "../..")],
    ],
)
def test_tar_that_would_write_elsewhere_is_refused(tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    archive = tar(tmp_path / "a.tar", tarfile.TarInfo("good"), *entries)
    with pytest.raises(DataError, match=r"a\.tar is refused: "):
        unpack(archive, tmp_path / "deep" / "out", ["good", "a", "evil"])
    assert left(tmp_path / "deep" / "out") == []
    assert not list(tmp_path.rglob("evil"))


def test_absolute_names_stay_below(tmp_path: Path) -> None:
    """The data filter of tarfile takes the leading slash off."""
    archive = tar(tmp_path / "a.tar", tarfile.TarInfo(f"{tmp_path}/evil"), tarfile.TarInfo("good"))
    unpack(archive, tmp_path / "out", ["good"])
    assert left(tmp_path / "out") == ["good"]
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..\\evil", "C:/evil"])
def test_zip_that_would_write_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("good", b"x")
        file.writestr(name, b"x")
    with pytest.raises(DataError, match="would be written outside the destination"):
        unpack(tmp_path / "a.zip", tmp_path / "out", ["good"])
    assert left(tmp_path / "out") == []


def test_damaged_archives(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as file:
        entry = tarfile.TarInfo("good")
        entry.size = 100_000
        file.addfile(entry, io.BytesIO(bytes(range(250)) * 400))
    whole = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "a.tgz").write_bytes(whole[: len(whole) - 20])
    with pytest.raises(DataError, match=r"a\.tgz"):
        unpack(tmp_path / "a.tgz", tmp_path / "out", ["good"])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("good", b"content")
    raw = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(raw.replace(b"content", b"CONTENT", 1))
    with pytest.raises(DataError, match=r"a\.zip is damaged: Bad CRC-32"):
        unpack(tmp_path / "a.zip", tmp_path / "out", ["good"])
    assert left(tmp_path / "out") == []


def test_archive_of_something_else(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", tarfile.TarInfo("cats"))
    with pytest.raises(DataError, match=r"a\.tar holds cats, expected dogs, wolves"):
        unpack(archive, tmp_path / "out", ["wolves", "dogs"])
    assert left(tmp_path / "out") == []


def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", tarfile.TarInfo("good"), content=b"x" * 5000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DataError, match=r"cannot unpack .*a\.tar into .*out: File too large"):
            unpack(archive, tmp_path / "out", ["good"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left(tmp_path / "out") == []


def test_what_is_there_is_kept_and_told(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", tarfile.TarInfo("one"), tarfile.TarInfo("two"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/one").write_bytes(b"mine")
    assert unpack(archive, tmp_path / "out", ["one", "two"]) == ["one"]
    assert (tmp_path / "out/one").read_bytes() == b"mine"
    assert (tmp_path / "out/two").read_bytes() == b"x"
