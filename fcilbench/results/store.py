"""The results folder: `rows.jsonl`, and what travels with its rows.

A published folder is a handful of files: `rows.jsonl` (a row a line; the last one of a cell counts), `curves.jsonl`
(`cell_id` and `events`), `environments.jsonl` (`digest` and `environment`), `suites.jsonl` (`digest` and `suite`, the
resolved suite) and `store.json` (the folder's own id). A folder in which cells are trained has besides
`cells/<cell_id>/` with all that their training writes (row.json, rounds.jsonl, log.txt, traceback.txt, checkpoint.pt,
lease.json), and `runs.jsonl` (`fcilbench.results.planned`). Folders of an older fcilbench have `env/<hex>.json` and
`suites/<hex>.yaml`, which are still read.

Everything is read as a stranger's, see `fcilbench.results.foreign`: what is no regular file or breaks a limit is an
error, and a line that is damaged is told and left out.
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fcilbench.errors import NothingSelectedError, PrerequisiteError
from fcilbench.files import write_atomic
from fcilbench.results.curves import Curve, Curves, own_file
from fcilbench.results.foreign import (
    RECORD,
    DamagedError,
    RefusedError,
    open_regular,
    parse_json,
    read_regular,
    refuse_links,
)
from fcilbench.results.lines import Line, Records, Telling, append_lines, locked, read_lines
from fcilbench.results.provenance import digest
from fcilbench.results.sharing import Sharing
from fcilbench.spec.cell import PLUGIN_KINDS
from fcilbench.spec.row import Row, check_version
from fcilbench.tables import cut

_log = logging.getLogger(__name__)
_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{64}")
_ROWS = "rows.jsonl"
_ZEROS, _TWENTY = bytes.maketrans(b"123456789", b"000000000"), b"0" * 20
_LONG = re.compile(rb'(?:":|,|\[)\s*-?\d{20}')
"""A number that no part of this package can do with; an honest one has fewer digits before its point."""


class NoRowsError(NothingSelectedError):
    """A results folder holds no rows, or none that is selected."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"no rows in {root}", hint="`fcilbench run SUITE --out DIR` writes them")


class Store:
    """One results folder; the first write creates it."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.rows_path = self.root / _ROWS
        self.curves = Curves(self.root)
        environments, suites = (Records(self.root, f"{name}.jsonl", "digest") for name in ("environments", "suites"))
        self._environments = _Kind(environments, "environment", "env/{}.json", parse_json)
        self._suites = _Kind(suites, "suite", "suites/{}.yaml", _parse_yaml)

    def exists(self) -> bool:
        """Whether there is a `rows.jsonl`; what it is, its readers say."""
        return os.path.lexists(self.rows_path)

    def cell_dir(self, cell_id: str) -> Path:
        """Returns the folder in which a cell is trained, which may not exist."""
        return self.root / "cells" / cell_id

    def cell_file(self, cell_id: str, name: str) -> Path | None:
        """Returns a file that the training of a cell has written; `None` if there is none, or it is no regular file."""
        try:
            open_regular(self.root, f"cells/{cell_id}/{name}").close()
        except (FileNotFoundError, RefusedError):
            return None
        return self.cell_dir(cell_id) / name

    def prepare(self) -> None:
        """Makes sure, before anything is trained, that rows can be written here.

        Raises:
            PrerequisiteError: If the folder cannot be created or written, or its `store.json` is damaged.
        """
        try:
            with locked(self.root, _ROWS):
                pass
            self.identifier()
        except (OSError, RefusedError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise PrerequisiteError(
                f"results cannot be written to {self.root}: {reason}",
                hint="name another folder with --out, or make room and grant access there",
            ) from error

    def append(self, row: Row) -> Row:
        """Appends the row of a cell that was trained here, durably, and copies it to the cell's `row.json`.

        Returns the row as written, with its `curve_ref` if its training has written a curve.
        """
        name = own_file(row.cell_id)
        curve = self.root / name
        if not curve.exists() and os.path.lexists(self.root / "curves.jsonl"):
            write_atomic(curve, b"")  # a curve that was merged with an earlier row is not that of this one
        if row.curve_ref is None and curve.is_file() and curve.stat().st_size:
            row = row.model_copy(update={"curve_ref": name})
        self.extend([row])
        write_atomic(self.cell_dir(row.cell_id) / "row.json", f"{row.to_json()}\n")
        return row

    def extend(self, rows: Iterable[Row]) -> None:
        """Appends rows as they are, with one sync for all."""
        self.extend_json((row.cell_id, row.to_json().encode()) for row in rows)

    def extend_json(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Appends rows by their cell ids and JSON texts, which are kept as they are, with one sync for all."""
        copies: dict[str, bytes] = {}
        trained = (self.root / "cells").is_dir()

        def texts() -> Iterator[bytes]:
            for cell_id, text in rows:
                if trained and (self.cell_dir(cell_id) / "row.json").is_file():
                    copies[cell_id] = text
                yield text

        self.identifier()
        append_lines(self.root, _ROWS, texts())
        for cell_id, text in copies.items():  # no sync: they can be made again from `rows.jsonl`
            refuse_links(self.root, f"cells/{cell_id}")
            write_atomic(self.cell_dir(cell_id) / "row.json", text + b"\n", durable=False)

    def lines(self) -> Iterator[Line]:
        """Yields the lines of `rows.jsonl`, which `row_of` reads.

        Raises:
            RefusedError: If it is no regular file, or larger than any honest one.
        """
        return read_lines(self.root, _ROWS)

    def entries(self) -> Iterator[tuple[Line, Row]]:
        """Yields all rows with their lines in the order in which they were written, earlier attempts included.

        An unfinished last line is ignored. Any other line that is not a row is skipped with a logged warning.

        Raises:
            UsageError: If a row was written by a newer version of the schema, or the file is refused.
        """
        telling = Telling(self.rows_path)
        for line in self.lines():
            try:
                row = row_of(line)
            except ValueError as error:
                if line.finished:
                    reason = cut(" ".join(str(error).split()), 250)
                    telling.left_out(line.number, f"is not a row and is left out: {reason}")
            else:
                yield line, row
        telling.end()

    def scan(self) -> Iterator[Row]:
        """Yields the rows of `entries`."""
        return (row for _, row in self.entries())

    def latest(self) -> dict[str, Row]:
        """Returns the last row of each cell, by `cell_id`; rows share the parts in which they are equal.

        One of a run that did not come to the cell (`Row.unstarted`) hides none.
        """
        found: dict[str, Row] = {}
        with Sharing() as share:
            for row in self.scan():
                if not row.unstarted or row.cell_id not in found:
                    found[row.cell_id] = share(row)
        return found

    def curve(self, cell_id: str) -> Curve | None:
        """Returns a cell's learning curve, or `None` if there is none; what is damaged in it is told as `wrong`."""
        return self.curves.read(cell_id)

    def rounds(self, cell_id: str) -> list[dict[str, Any]]:
        """Returns the events of a cell's learning curve, of each round and each task end; what is none is skipped."""
        found = self.curves.read(cell_id)
        return found.events if found else []

    def save_environment(self, record: Mapping[str, Any]) -> str:
        """Stores an environment record, unless it is there already, and returns its digest, `sha256:<hex>`."""
        return self._save(self._environments, record)

    def environment(self, env: str) -> dict[str, Any] | None:
        """Returns the environment record of a row's `env` digest, or `None` if the store has none that can be read."""
        return self._record(self._environments, env)

    def save_suite(self, suite: Mapping[str, Any]) -> str:
        """Stores a resolved suite (plain JSON values), unless it is there already, and returns its digest."""
        return self._save(self._suites, suite)

    def suite(self, suite_digest: str) -> dict[str, Any] | None:
        """Returns the resolved suite of a row's `suite_digest`, or `None` if the store has none that can be read."""
        return self._record(self._suites, suite_digest)

    def identifier(self) -> str:
        """Returns the folder's own random id, by which trackers tell folders apart; the first call makes it.

        Raises:
            PrerequisiteError: If `store.json` is damaged.
            RefusedError: If it is no regular file.
        """
        path = self.root / "store.json"
        if not os.path.lexists(path):
            with locked(self.root, _ROWS):  # if two processes start here, the first one makes the id
                if not os.path.lexists(path):
                    write_atomic(path, json.dumps({"store": 1, "id": uuid.uuid4().hex}) + "\n")
        try:
            return str(parse_json(read_regular(self.root, path.name, RECORD.size) or b"")["id"])
        except (ValueError, TypeError, KeyError) as error:
            raise PrerequisiteError(
                f"{path} is damaged: it does not hold the folder's id",
                hint=f"delete {path}; a new id is made, and trackers then log the folder's rows again",
            ) from error

    def _save(self, kind: _Kind, record: Mapping[str, Any]) -> str:
        name = digest(record)
        if self._record(kind, name) is None:
            text = json.dumps({"digest": name, kind.key: record}, separators=(",", ":"))
            kind.records.append([text.encode()])
        return name

    def _record(self, kind: _Kind, name: str) -> dict[str, Any] | None:
        """Returns a record by its digest; one that is damaged is told and not returned."""
        if not _DIGEST.fullmatch(name):
            return None  # anything else could name a file outside the store
        where = kind.old.format(name.removeprefix("sha256:"))
        try:
            content = kind.records.content(name)
            if content is not None:
                found = parse_json(content).get(kind.key)
            elif (content := read_regular(self.root, where, RECORD.size)) is not None:
                found = kind.parse(content)
            else:
                return None
            if not isinstance(found, dict):
                raise DamagedError("it is no map")
        except (DamagedError, RefusedError) as error:
            reason = cut(" ".join(str(error).split()), 250)
            _log.warning("%s: the %s %s is left out: %s", self.root, kind.key, name[:19], reason)
            return None
        return found


class _Kind(NamedTuple):
    """Records that are named by their digest.

    Attributes:
        records: Their file.
        key: The key under which a record stands in its line.
        old: Their files in a folder of an older fcilbench, which `parse` reads.
    """

    records: Records
    key: str
    old: str
    parse: Callable[[bytes], Any]


def row_of(line: Line) -> Row:
    """Returns the row in a line of `rows.jsonl`, of any known schema version.

    Raises:
        ValueError: If it is not a row, or its checksum does not fit.
        UsageError: If its schema is newer than this version of fcilbench.
    """
    content = line.content()
    try:
        row = Row.model_validate_json(content)
    except ValidationError:
        check_version(parse_json(content))
        raise
    if PLUGIN_KINDS.keys() != row.plugins.keys():
        raise DamagedError(f"it has no {', '.join(sorted(PLUGIN_KINDS.keys() - row.plugins.keys()))}")
    if _TWENTY in content.translate(_ZEROS) and _LONG.search(content):  # the translation is quick, the search is not
        raise DamagedError("a number has 20 digits or more")
    if b"NaN" in content or b"Infinity" in content:
        parse_json(content)  # which refuses them outside of texts
    return row


def _parse_yaml(content: bytes) -> Any:
    from fcilbench.suite.yaml import MAX_BYTES, MAX_VALUES, InvalidSuiteError, parse

    if len(content) > MAX_BYTES or sum(map(content.count, (b",", b"\n", b"["))) > MAX_VALUES:
        raise DamagedError(f"more than {MAX_BYTES:,} bytes or {MAX_VALUES:,} values")
    try:
        return parse(content, "suite").plain()
    except InvalidSuiteError as error:
        raise DamagedError(str(error)) from error
