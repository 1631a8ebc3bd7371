from __future__ import annotations

import os
from pathlib import Path

import pytest

from fcilbench.files import read_json_lines, replacing, write_atomic


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


def test_json_lines_are_numbered_and_only_the_unfinished_end_is_a_tail(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n\nbroken\n' + b"[" * 100_000 + b'\n{"b"')
    lines = list(read_json_lines(path))
    assert [(number, is_tail) for number, _, is_tail in lines] == [(1, False), (3, False), (4, False), (5, True)]
    assert lines[0][1] == {"a": 1}
    assert all(isinstance(value, ValueError) for _, value, _ in lines[1:])
    assert list(read_json_lines(Path(tmp_path / "absent"))) == []
