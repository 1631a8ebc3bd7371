"""The results folder: append-only `rows.jsonl`, one folder a cell, one file an environment.

Layout: `rows.jsonl` (the truth; the last row of a cell wins), `cells/<cell_id>/` (row.json, rounds.jsonl, log.txt,
traceback.txt, checkpoint.pt, lease.json), `env/<hex>.json`, `store.json` (the folder's own id). A row is one
`write` under a lock, then `fsync`; everything else is written under a temporary name and renamed. Whatever moment a
process dies at, the next reader sees every row that was finished.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fcilbench.results.files import read_json_lines, sync_folder, write_atomic
from fcilbench.results.migrate import parse_row
from fcilbench.results.provenance import digest
from fcilbench.spec.row import Row

_log = logging.getLogger(__name__)


class Store:
    """One results folder.

    Args:
        root: The folder; it is created when the first thing is written, never by reading.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    @property
    def rows_path(self) -> Path:
        """Path of `rows.jsonl`."""
        return self.root / "rows.jsonl"

    def exists(self) -> bool:
        """Whether the folder holds any rows."""
        return self.rows_path.is_file()

    def cell_dir(self, cell_id: str) -> Path:
        """Returns the folder of a cell, which may not exist yet."""
        return self.root / "cells" / cell_id

    def make_cell_dir(self, cell_id: str) -> Path:
        """Creates the folder of a cell if it is missing, and returns it."""
        folder = self.cell_dir(cell_id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def append(self, row: Row) -> Row:
        """Appends a row durably, then copies it to the cell's `row.json`.

        Args:
            row: The row. A missing `curve_ref` is filled in if the cell's folder has a curve.

        Returns:
            The row as written.
        """
        curve = self.cell_dir(row.cell_id) / "rounds.jsonl"
        if row.curve_ref is None and curve.is_file():
            row = row.model_copy(update={"curve_ref": curve.relative_to(self.root).as_posix()})
        self.write(row)
        return row

    def write(self, row: Row) -> None:
        """Appends a row exactly as it is, then copies it to the cell's `row.json`."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.identifier()
        with self._locked() as handle:
            self._set_torn_tail_aside(handle)
            _write_all(handle, row.to_json().encode() + b"\n")
            os.fsync(handle)
        write_atomic(self.make_cell_dir(row.cell_id) / "row.json", row.to_json() + "\n")

    def rows(self) -> list[Row]:
        """Returns all rows in the order they were written, earlier attempts included.

        A last line that a dying process left unfinished is ignored. Any other line that is not a row is left out
        with a logged warning.

        Raises:
            UsageError: If a row was written by a newer version of the schema.
        """
        rows = []
        for number, raw, is_tail in read_json_lines(self.rows_path):
            try:
                if isinstance(raw, ValueError):
                    raise raw
                rows.append(parse_row(raw))
            except ValueError as error:
                if not is_tail:
                    reason = str(error).partition("\n")[0]
                    _log.warning("%s:%d is not a row and is left out: %s", self.rows_path, number, reason)
        return rows

    def latest(self) -> dict[str, Row]:
        """Returns the last row of each cell, by `cell_id`."""
        return {row.cell_id: row for row in self.rows()}

    def rounds(self, cell_id: str) -> list[dict[str, Any]]:
        """Returns a cell's learning curve, one record a round; empty if it has none."""
        lines = read_json_lines(self.cell_dir(cell_id) / "rounds.jsonl")
        return [raw for _, raw, _ in lines if isinstance(raw, dict)]

    def save_environment(self, record: Mapping[str, Any]) -> str:
        """Stores an environment record once per content and returns its digest, `sha256:<hex>`."""
        name = digest(record)
        path = self._environment_path(name)
        if not path.is_file():
            write_atomic(path, json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
        return name

    def environment(self, env: str) -> dict[str, Any] | None:
        """Returns the environment record of a row's `env` digest, or `None` if the store has none."""
        try:
            raw = json.loads(self._environment_path(env).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return raw if isinstance(raw, dict) else None

    def identifier(self) -> str:
        """Returns the folder's own random id, made on first use; trackers tell folders apart by it."""
        path = self.root / "store.json"
        for _ in range(2):
            try:
                return str(json.loads(path.read_text(encoding="utf-8"))["id"])
            except FileNotFoundError:
                # `exclusive` lets the first of two processes win; the other one reads what it wrote.
                write_atomic(path, json.dumps({"store": 1, "id": uuid.uuid4().hex}) + "\n", exclusive=True)
        raise FileNotFoundError(path)

    def _environment_path(self, env: str) -> Path:
        return self.root / "env" / f"{env.removeprefix('sha256:')}.json"

    @contextmanager
    def _locked(self) -> Iterator[int]:
        created = not self.rows_path.exists()
        handle = os.open(self.rows_path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if created:
                sync_folder(self.root)
            yield handle
        finally:
            os.close(handle)  # closing releases the lock

    def _set_torn_tail_aside(self, handle: int) -> None:
        """Moves an unfinished last line to `rows.torn`, so that the next row starts on a line of its own."""
        size = os.fstat(handle).st_size
        tail = _tail(handle, size)
        if not tail:
            return
        if _is_row(tail):  # only the newline is missing
            _write_all(handle, b"\n")
            return
        with open(self.root / "rows.torn", "ab") as torn:
            torn.write(tail + b"\n")
        os.ftruncate(handle, size - len(tail))
        _log.warning("%s ended in an unfinished line of %d bytes; moved to rows.torn", self.rows_path, len(tail))


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _tail(handle: int, size: int, chunk: int = 65536) -> bytes:
    """Returns what follows the last newline."""
    tail, start = b"", size
    while start > 0:
        begin = max(0, start - chunk)
        tail = os.pread(handle, start - begin, begin) + tail
        _, newline, rest = tail.rpartition(b"\n")
        if newline:
            return rest
        start = begin
    return tail


def _is_row(line: bytes) -> bool:
    try:
        parse_row(json.loads(line))
    except ValueError:
        return False
    return True
