from __future__ import annotations

import os
from pathlib import Path

import pytest

from fcilbench.results.files import read_json_lines, write_atomic


def test_a_file_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "deep" / "x.json"
    assert write_atomic(path, "one")
    assert write_atomic(path, "zwei ä")
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


def test_exclusive_leaves_what_is_there(tmp_path):
    path = tmp_path / "x"
    assert write_atomic(path, "first", exclusive=True)
    assert not write_atomic(path, "second", exclusive=True)
    assert path.read_text() == "first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_json_lines_are_numbered_and_only_the_unfinished_end_is_a_tail(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n\nbroken\n{"b"')
    lines = list(read_json_lines(path))
    assert [(number, is_tail) for number, _, is_tail in lines] == [(1, False), (3, False), (4, True)]
    assert lines[0][1] == {"a": 1}
    assert all(isinstance(value, ValueError) for _, value, _ in lines[1:])
    assert list(read_json_lines(Path(tmp_path / "absent"))) == []
