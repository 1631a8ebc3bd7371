from __future__ import annotations

import os

import pytest

from fcilbench.files import replacing, write_atomic


def test_a_file_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "deep" / "x.json"
    write_atomic(path, "one")
    write_atomic(path, "zwei ä")
    assert path.read_bytes() == "zwei ä".encode()
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomic(path, "old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_what_a_block_writes_replaces_the_file_only_if_it_ends_well(tmp_path):
    path = tmp_path / "x"
    with replacing(path) as file:
        file.write(b"first")
    with pytest.raises(TypeError), replacing(path, durable=False) as file:
        file.write(b"second", "one argument too many")
    assert path.read_text() == "first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
