"""The results folder: append-only `rows.jsonl`, and a folder for each cell.

Layout: `rows.jsonl` (the last row of a cell counts), `cells/<cell_id>/` (row.json, rounds.jsonl, log.txt,
traceback.txt, checkpoint.pt, lease.json), `env/<hex>.json` (environments), `suites/<hex>.yaml` (resolved suites),
`store.json` (the folder's own id). Rows are appended under a lock and synced; other files are written under a temporary
name and renamed. So a process may die at any moment, and the next reader sees every row that was finished.
"""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fcilbench.errors import NothingSelectedError, PrerequisiteError
from fcilbench.files import sync_folder, write_all, write_atomic
from fcilbench.results.provenance import digest
from fcilbench.spec.row import Row, parse_row
from fcilbench.tables import cut

_log = logging.getLogger(__name__)
_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{64}")


class NoRowsError(NothingSelectedError):
    """A results folder holds no rows, or none that is selected."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"no rows in {root}", hint="`fcilbench run SUITE --out DIR` writes them")


class Store:
    """One results folder; the first write creates it."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.rows_path = self.root / "rows.jsonl"

    def exists(self) -> bool:
        """Whether the folder holds any rows."""
        return self.rows_path.is_file()

    def cell_dir(self, cell_id: str) -> Path:
        """Returns the folder of a cell, which may not exist yet."""
        return self.root / "cells" / cell_id

    def prepare(self) -> None:
        """Makes sure, before anything is trained, that rows can be written here.

        Raises:
            PrerequisiteError: If the folder cannot be created or written, or its `store.json` is damaged.
        """
        try:
            with self._locked():
                pass
            self.identifier()
        except OSError as error:
            raise PrerequisiteError(
                f"results cannot be written to {self.root}: {error.strerror or error}",
                hint="name another folder with --out, or make room and grant access there",
            ) from error

    def append(self, row: Row) -> Row:
        """Appends a row durably; returns it as written, with its `curve_ref` if the cell's folder has a curve."""
        curve = self.cell_dir(row.cell_id) / "rounds.jsonl"
        if row.curve_ref is None and curve.is_file():
            row = row.model_copy(update={"curve_ref": curve.relative_to(self.root).as_posix()})
        self.extend([row])
        return row

    def extend(self, rows: Iterable[Row]) -> None:
        """Appends rows as they are, with one sync for all, and copies the last one of each cell to its `row.json`."""
        lines = [(row.cell_id, row.to_json().encode() + b"\n") for row in rows]
        if not lines:
            return
        self.identifier()
        with self._locked() as handle:
            self._set_torn_tail_aside(handle)
            write_all(handle, b"".join(line for _, line in lines))
            os.fsync(handle)
        for cell_id, line in dict(lines).items():
            # Copies of many rows need no sync each: they can be made again from `rows.jsonl`.
            write_atomic(self.cell_dir(cell_id) / "row.json", line, durable=len(lines) == 1)

    def scan(self) -> Iterator[Row]:
        """Yields all rows in the order in which they were written, earlier attempts included.

        An unfinished last line is ignored. Any other line that is not a row is skipped with a logged warning.

        Raises:
            UsageError: If a row was written by a newer version of the schema.
        """
        try:
            file = self.rows_path.open("rb")
        except FileNotFoundError:
            return
        with file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    yield parse_row(json.loads(line))
                except (ValueError, RecursionError) as error:
                    if line.endswith(b"\n"):
                        reason = cut(" ".join(str(error).split()), 200)
                        _log.warning("%s:%d is not a row and is left out: %s", self.rows_path, number, reason)

    def latest(self) -> dict[str, Row]:
        """Returns the last row of each cell, by `cell_id`."""
        return {row.cell_id: row for row in self.scan()}

    def rounds(self, cell_id: str) -> list[dict[str, Any]]:
        """Returns a cell's learning curve, one record for each round; lines that are no records are skipped."""
        path = self.cell_dir(cell_id) / "rounds.jsonl"
        records = []
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            with suppress(ValueError, RecursionError):
                records.append(json.loads(line))
        return [record for record in records if isinstance(record, dict)]

    def save_environment(self, record: Mapping[str, Any]) -> str:
        """Stores an environment record, unless it is there already, and returns its digest, `sha256:<hex>`."""
        name = digest(record)
        if not self.environment_path(name).is_file():
            write_atomic(self.environment_path(name), json.dumps(record, indent=2, sort_keys=True) + "\n")
        return name

    def environment(self, env: str) -> dict[str, Any] | None:
        """Returns the environment record of a row's `env` digest, or `None` if the store has none."""
        return _record(self.environment_path(env), json.loads)

    def save_suite(self, suite: Mapping[str, Any]) -> str:
        """Stores a resolved suite (plain JSON values) as YAML, unless it is there already, and returns its digest."""
        from ruamel.yaml import YAML

        name = digest(suite)
        if not self.suite_path(name).is_file():
            text = io.StringIO()
            YAML(typ="safe", pure=True).dump(json.loads(json.dumps(suite)), text)
            write_atomic(self.suite_path(name), text.getvalue())
        return name

    def suite(self, suite_digest: str) -> dict[str, Any] | None:
        """Returns the resolved suite of a row's `suite_digest`, or `None` if the store has none."""
        from ruamel.yaml import YAML

        return _record(self.suite_path(suite_digest), YAML(typ="safe", pure=True).load)

    def suite_path(self, suite_digest: str) -> Path:
        """Returns the file of a resolved suite; it may not exist."""
        return self.root / "suites" / f"{_hex(suite_digest)}.yaml"

    def environment_path(self, env: str) -> Path:
        """Returns the file of an environment record; it may not exist."""
        return self.root / "env" / f"{_hex(env)}.json"

    def identifier(self) -> str:
        """Returns the folder's own random id, by which trackers tell folders apart; the first call makes it.

        Raises:
            PrerequisiteError: If `store.json` is damaged.
        """
        path = self.root / "store.json"
        if not path.exists():
            with self._locked():  # if two processes start here, the first one makes the id
                if not path.exists():
                    write_atomic(path, json.dumps({"store": 1, "id": uuid.uuid4().hex}) + "\n")
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["id"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise PrerequisiteError(
                f"{path} is damaged: it does not hold the folder's id",
                hint=f"delete {path}; a new id is made, and trackers then log the folder's rows again",
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.root.mkdir(parents=True, exist_ok=True)
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
        """Moves an unfinished last line to `rows.torn`, so that the next row starts on a new line."""
        size = os.fstat(handle).st_size
        if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
            return
        with self.rows_path.open("rb") as file:
            tail = deque(file, maxlen=1).pop()
        with suppress(ValueError):
            Row.model_validate_json(tail)
            write_all(handle, b"\n")  # only the newline is missing
            return
        with open(self.root / "rows.torn", "ab") as torn:
            torn.write(tail + b"\n")
        os.ftruncate(handle, size - len(tail))
        _log.warning("%s ended in an unfinished line of %d bytes; moved to rows.torn", self.rows_path, len(tail))


def _hex(name: str) -> str:
    """Returns the hexadecimal part of a digest; anything else could name a file outside the store."""
    return name.removeprefix("sha256:") if _DIGEST.fullmatch(name) else "unknown"


def _record(path: Path, parse: Callable[[str], Any]) -> dict[str, Any] | None:
    """Returns the record in a file; `None` if there is no such file, or it is damaged in whatever way."""
    try:
        raw = parse(path.read_text(encoding="utf-8"))
    except Exception:
        return None
    return raw if isinstance(raw, dict) else None
