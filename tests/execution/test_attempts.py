from pathlib import Path
from typing import Any

import pytest

from fcilbench.execution import attempts
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row


@pytest.fixture
def cell(make_cell: Any) -> Cell:
    cell: Cell = make_cell("sum")
    return cell


def with_status(make_row: Any, cell: Cell, status: str) -> Row:
    row: Row = make_row(cell, {"faa/none": 0.5} if status == "ok" else status)
    return row


def test_without_an_earlier_attempt_nothing_is_resumed(tmp_path: Path, cell: Cell) -> None:
    assert attempts.resumable(tmp_path, cell, None) == 0


def test_an_attempt_that_died_with_its_run_is_resumed(tmp_path: Path, cell: Cell) -> None:
    attempts.note_attempt(tmp_path, cell, 3)
    assert attempts.resumable(tmp_path, cell, None) == 3


@pytest.mark.parametrize(
    ("status", "earlier"),
    [("killed", 2), ("oom", 2), ("timeout", 2), ("interrupted", 2), ("ok", 0), ("failed", 0), ("skipped", 0)],
)
def test_only_what_broke_off_is_resumed(tmp_path: Path, cell: Cell, make_row: Any, status: str, earlier: int) -> None:
    attempts.note_attempt(tmp_path, cell, 2)
    assert attempts.resumable(tmp_path, cell, with_status(make_row, cell, status)) == earlier


def test_what_is_void_is_removed(tmp_path: Path) -> None:
    for name in ("checkpoint.pt", "rounds.jsonl", "log.txt"):
        (tmp_path / name).touch()
    attempts.forget(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_other_code_voids_the_checkpoint(tmp_path: Path, cell: Cell, make_cell: Any) -> None:
    attempts.note_attempt(tmp_path, cell, 2)
    assert attempts.resumable(tmp_path, make_cell("sum", code="edited"), None) == 0


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"attempts": 1}', '{"attempts": "x", "code_digest": ""}'])
def test_a_torn_note_voids_the_checkpoint(tmp_path: Path, cell: Cell, content: str) -> None:
    (tmp_path / "cell.json").write_text(content)
    assert attempts.resumable(tmp_path, cell, None) == 0
