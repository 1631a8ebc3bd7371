"""Whatever a server does, the answer is one error that helps, and nothing half-written stays."""

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from dataclasses import asdict
from typing import Any

import pytest

from fcilbench.data.fetch import fetch, unpack
from fcilbench.errors import DataError
from fcilbench.spec.archive import Archive


def tar_of(**files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


BODY = tar_of(pets__train__cat=os.urandom(300), pets__test__cat=b"t", litter=b"x")


def facts(web, body=BODY, **changes):
    """What a plugin declares whose archive is `body` at `/pets.tgz`."""
    archive = Archive("pets.tgz", f"md5:{hashlib.md5(body).hexdigest()}", "us", f"{web.url}/pets.tgz", len(body))
    declared = {**asdict(archive), **changes}
    return {"layouts": [["pets/train", "pets/test"]], "archives": [declared], "by_hand": "", "homepage": "https://pets"}


def everything(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


ALL = {"archives/pets.tgz", "pets/train/cat", "pets/test/cat"}
PUT_IT_THERE = f"put pets.tgz (md5:{hashlib.md5(BODY).hexdigest()}, published by us) into "


@pytest.mark.parametrize("known", [True, False])
def test_fetches_verifies_and_unpacks(tmp_path, web, answer, known):
    web.answers["/pets.tgz"] = answer(BODY, length=known)
    declared = {} if known else {"checksum": f"sha256:{hashlib.sha256(BODY).hexdigest()}", "size": None}
    seen: list[tuple[str, int, int | None]] = []
    found = fetch("pets", facts(web, **declared), tmp_path, progress=lambda *now: seen.append(now))
    assert found == (tmp_path / "pets/train", tmp_path / "pets/test")
    assert everything(tmp_path) == ALL
    assert (tmp_path / "archives/pets.tgz").read_bytes() == BODY
    assert seen[-1] == ("pets.tgz", len(BODY), len(BODY) if known else None)


def test_what_is_there_needs_no_network(tmp_path, web, answer):
    web.answers["/pets.tgz"] = answer(BODY)
    fetch("pets", facts(web), tmp_path)
    web.asked.clear()
    fetch("pets", facts(web), tmp_path)
    shutil.rmtree(tmp_path / "pets")
    fetch("pets", facts(web), tmp_path, offline=True)  # the archive is valid
    assert web.asked == []
    assert everything(tmp_path) == ALL


def test_data_without_files_need_nothing(tmp_path):
    assert fetch("digits", {"layouts": [], "archives": []}, tmp_path) == ()


def test_offline_says_what_to_put_where(tmp_path, web):
    with pytest.raises(DataError, match=f"pets: {web.url}/pets.tgz: not fetched, since --offline") as caught:
        fetch("pets", facts(web), tmp_path, offline=True)
    assert f"{PUT_IT_THERE}{tmp_path}/archives" in (caught.value.hint or "")
    assert web.asked == []


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "gone": ({"status": 404}, "cannot be fetched (404 Client Error: Not Found"),
    "down": ({"status": 503}, "cannot be fetched (503 Server Error: Service Unavailable"),
    "page": ({"body": b"<html>".ljust(len(BODY))}, "does not have the published checksum md5:"),
    "longer": ({"body": BODY + b"more", "length": False}, f"{len(BODY) + 4} bytes, does not have the published"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_is_one_error_and_leaves_nothing(tmp_path, web, answer, fault):
    behaviour, reason = FAULTS[fault]
    web.answers["/pets.tgz"] = answer(**behaviour)
    with pytest.raises(DataError) as caught:
        fetch("pets", facts(web), tmp_path)
    assert str(caught.value).startswith(f"pets: {web.url}/pets.tgz: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert f"{PUT_IT_THERE}{tmp_path}/archives" in (caught.value.hint or "")
    assert everything(tmp_path) == set()


def test_nobody_there(tmp_path, web):
    declared = facts(web, url="http://127.0.0.1:9/pets.tgz")
    with pytest.raises(DataError, match=r"pets: http://127\.0\.0\.1:9/pets\.tgz: cannot be fetched \("):
        fetch("pets", declared, tmp_path)
    assert everything(tmp_path) == set()


def test_broken_transfer_goes_on_where_the_server_can(tmp_path, web, answer):
    third = len(BODY) // 3 + 1
    web.answers["/pets.tgz"] = answer(BODY, stops=third, ranges=True)
    fetch("pets", facts(web), tmp_path)
    assert [ranges for _, ranges in web.asked] == ["", f"bytes={third}-", f"bytes={2 * third}-"]
    assert everything(tmp_path) == ALL


@pytest.mark.parametrize("length", [True, False])
def test_broken_transfer_is_told_where_the_server_starts_anew(tmp_path, web, answer, length):
    web.answers["/pets.tgz"] = answer(BODY, stops=100, length=length)
    with pytest.raises(DataError, match="the transfer broke off after 100 bytes"):
        fetch("pets", facts(web), tmp_path)
    web.answers["/pets.tgz"] = answer(BODY)
    fetch("pets", facts(web), tmp_path)
    assert [ranges for _, ranges in web.asked] == ["", "bytes=100-", "bytes=100-"]
    assert everything(tmp_path) == ALL


def test_the_next_call_goes_on_too(tmp_path, web, answer):
    web.answers["/pets.tgz"] = answer(BODY, stops=10, ranges=True)
    with pytest.raises(DataError, match="broke off after 50 bytes"):
        fetch("pets", facts(web), tmp_path)
    assert everything(tmp_path) == {"archives/.pets.tgz.part"}
    web.asked.clear()
    web.answers["/pets.tgz"] = answer(BODY, ranges=True)
    fetch("pets", facts(web), tmp_path)
    assert [ranges for _, ranges in web.asked] == ["bytes=50-"]
    assert everything(tmp_path) == ALL


def test_a_wrong_beginning_is_not_kept(tmp_path, web, answer):
    """The file has changed since the transfer broke off: the checksum tells, and the next call starts anew."""
    web.answers["/pets.tgz"] = answer(BODY, ranges=True)
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives/.pets.tgz.part").write_bytes(b"old" * 10)
    with pytest.raises(DataError, match="published checksum"):
        fetch("pets", facts(web), tmp_path)
    assert everything(tmp_path) == set()
    fetch("pets", facts(web), tmp_path)
    assert web.asked[-1][1] == ""


def test_a_second_process_is_told(tmp_path, web, answer):
    web.answers["/pets.tgz"] = answer(BODY)
    (tmp_path / "archives").mkdir()
    part = tmp_path / "archives/.pets.tgz.part"
    with part.open("ab") as other:
        other.write(b"half")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is fetching it"):
            fetch("pets", facts(web), tmp_path)
        assert part.read_bytes() == b"half"


def test_a_process_that_is_refused_leaves_the_others_file_also_while_it_is_empty(tmp_path, web, answer):
    web.answers["/pets.tgz"] = answer(BODY)
    (tmp_path / "archives").mkdir()
    part = tmp_path / "archives/.pets.tgz.part"
    with part.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is fetching it"):
            fetch("pets", facts(web), tmp_path)
        assert part.exists()


def test_full_disk_leaves_nothing(tmp_path, web, answer, full_disk):
    web.answers["/pets.tgz"] = answer(BODY, ranges=True)
    with pytest.raises(DataError, match=r"cannot be written to .*archives \(File too large\)"), full_disk(100):
        fetch("pets", facts(web), tmp_path)
    assert everything(tmp_path) == set()


def test_a_wrong_file_put_there_by_hand_is_refused_and_left(tmp_path, web):
    (tmp_path / "archives").mkdir()
    place = tmp_path / "archives/pets.tgz"
    place.write_bytes(b"mine")
    with pytest.raises(DataError, match=rf"pets: {place} has md5:\w+ and 4 bytes, the official file has md5:\w+ and"):
        fetch("pets", facts(web), tmp_path)
    assert place.read_bytes() == b"mine"
    assert web.asked == []


def test_archive_without_an_address(tmp_path, web):
    declared = {**facts(web, url=""), "by_hand": "its site is gone:"}
    reason = r"pets: pets\.tgz cannot be fetched automatically: its site is gone$"
    with pytest.raises(DataError, match=reason) as caught:
        fetch("pets", declared, tmp_path)
    assert f"into {tmp_path}/archives" in (caught.value.hint or "")
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives/pets.tgz").write_bytes(BODY)
    fetch("pets", declared, tmp_path)
    assert web.asked == []
    assert (tmp_path / "pets/test/cat").read_bytes() == b"t"


def test_plugin_without_archives(tmp_path):
    declared = {"layouts": [["pets"]], "archives": [], "homepage": "https://pets"}
    with pytest.raises(DataError, match="its plugin declares no archive") as caught:
        fetch("pets", declared, tmp_path)
    assert caught.value.hint == f"get it from https://pets and put it at {tmp_path}/pets"


def test_zip(tmp_path, web, answer):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in ("pets/train/cat", "pets/test/cat", "__MACOSX/pets/._cat"):
            file.writestr(name, b"t")
    web.answers["/pets.tgz"] = answer(buffer.getvalue())
    fetch("pets", facts(web, buffer.getvalue()), tmp_path)
    assert everything(tmp_path) == ALL


def test_what_is_in_the_way_stays(tmp_path, web, answer):
    web.answers["/pets.tgz"] = answer(BODY)
    (tmp_path / "pets/train").mkdir(parents=True)
    with pytest.raises(DataError, match="pets: unpacked, but there is no") as caught:
        fetch("pets", facts(web), tmp_path)
    assert caught.value.hint == f"move {tmp_path}/pets out of the way and try again"


def test_parts_go_into_their_folder(tmp_path, web, answer):
    """As for Stanford Cars: two archives and a plain file below one folder."""
    bodies = {"train.tgz": tar_of(train__a=b"1"), "kit.tgz": tar_of(kit__a=b"1"), "labels.mat": b"MATLAB 5.0"}
    archives = []
    for name, body in bodies.items():
        web.answers[f"/{name}"] = answer(body)
        archives.append(
            asdict(Archive(name, f"md5:{hashlib.md5(body).hexdigest()}", "us", f"{web.url}/{name}", None, "cars"))
        )
    layouts = [["tree/train", "tree/test"], ["cars/train", "cars/kit", "cars/labels.mat"]]
    found = fetch("cars", {"layouts": layouts, "archives": archives, "homepage": ""}, tmp_path)
    assert found == (tmp_path / "cars/train", tmp_path / "cars/kit", tmp_path / "cars/labels.mat")
    assert (tmp_path / "cars/labels.mat").read_bytes() == b"MATLAB 5.0"


def tar(path, *entries):
    with tarfile.open(path, "w") as file:
        for entry in entries:
            entry.size = 1 if entry.isreg() else 0
            file.addfile(entry, io.BytesIO(b"x") if entry.isreg() else None)
    return path


def link(name, target):
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
def test_tar_that_would_write_elsewhere_is_refused(tmp_path, entries):
    archive = tar(tmp_path / "a.tar", tarfile.TarInfo("good"), *entries)
    with pytest.raises(DataError, match=r"cannot unpack .*a\.tar into .*"):
        unpack(archive, tmp_path / "deep" / "out", ["good", "a", "evil"])
    assert everything(tmp_path) == {"a.tar"}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..\\evil", "C:/evil"])
def test_zip_never_writes_elsewhere(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("good", b"x")
        file.writestr(name, b"x")
    unpack(tmp_path / "a.zip", tmp_path / "deep" / "out", ["good"])
    assert everything(tmp_path) == {"a.zip", "deep/out/good"}


def test_damaged_archives(tmp_path):
    tgz, zipped = tmp_path / "a.tgz", tmp_path / "a.zip"
    tgz.write_bytes(tar_of(good=os.urandom(100_000))[:-20])
    with zipfile.ZipFile(zipped, "w") as file:
        file.writestr("good", b"content")
    zipped.write_bytes(zipped.read_bytes().replace(b"content", b"CONTENT", 1))
    for archive, reason in ((tgz, "Compressed file ended"), (zipped, "Bad CRC-32")):
        with pytest.raises(DataError, match=f"cannot unpack {archive} into .*out: {reason}"):
            unpack(archive, tmp_path / "out", ["good"])
    assert everything(tmp_path / "out") == set()


def test_full_disk_at_unpacking_leaves_nothing(tmp_path, full_disk):
    archive = tmp_path / "a.tgz"
    archive.write_bytes(tar_of(good=bytes(5000)))
    with pytest.raises(DataError, match=r"cannot unpack .*a\.tgz into .*out: File too large"), full_disk(100):
        unpack(archive, tmp_path / "out", ["good"])
    assert everything(tmp_path / "out") == set()
