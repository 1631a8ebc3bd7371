"""Merges results folders, and exports the rows and files that a leaderboard needs."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fcilbench.errors import UsageError
from fcilbench.files import replacing, write_atomic
from fcilbench.results.compare import Comparison, compare, environment_difference
from fcilbench.results.provenance import digest
from fcilbench.results.store import Store
from fcilbench.spec.row import Row

_LEFT_BEHIND = frozenset({"checkpoint.pt", "lease.json", "module.safetensors", "row.json"})
_EXPORTED = frozenset({"rounds.jsonl"})


@dataclass(frozen=True)
class Conflict:
    """Two results of one cell that differ: the one that counts (`kept`) and the other one.

    `environment` holds the dotted keys at which their environments differ, with both values.
    """

    cell_id: str
    coords: Mapping[str, str | int]
    kept_from: Path
    other_from: Path
    found: Comparison
    kept_env: str
    other_env: str
    environment: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did.

    Attributes:
        cells: Cells in the target afterwards.
        added: Rows that the target did not have, earlier attempts included.
        conflicts: Pairs of results of which one must be wrong.
        remarks: Pairs of results of which only the model's digest differs, by their environment or code.
    """

    cells: int
    added: int
    conflicts: tuple[Conflict, ...]
    remarks: tuple[Conflict, ...]


@dataclass(frozen=True)
class _Entry:
    """One row of one folder, kept as a line of JSON so that thousands of them fit into memory."""

    store: Store
    status: str
    ended: datetime
    line: bytes = field(repr=False)

    @property
    def row(self) -> Row:
        return Row.model_validate_json(self.line)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.line).digest()


def merge(sources: Sequence[Store], target: Store, tolerance: Mapping[str, float] | None = None) -> MergeReport:
    """Merges results folders into a target, which may hold rows already.

    The target gets every row of every folder. Of the rows of one cell, the one that counts is written last: a result
    (`ok`) before any other status, then the target's row, then the order of the sources; of rows without a result, the
    latest. Its files are copied, with environments and resolved suites; the files of a row that differs go to
    `conflicts/<cell_id>/<row digest>/`. Checkpoints, models and leases are not copied, symbolic links not followed.
    Merging the same folders again adds nothing and finds the same conflicts.

    `tolerance` is that of `fcilbench.results.compare.compare`.

    Raises:
        UsageError: If a source holds no rows.
    """
    for source in sources:
        if not source.exists():
            raise UsageError(f"{source.root} holds no rows.jsonl", hint="name folders written by `fcilbench run --out`")
    stores = [target, *(source for source in sources if source.root.resolve() != target.root.resolve())]
    history: dict[str, list[_Entry]] = {}
    for store in stores:
        needed: set[tuple[str, str | None]] = set()
        for row in store.scan():
            entry = _Entry(store, row.status, row.ended, row.to_json().encode())
            history.setdefault(row.cell_id, []).append(entry)
            needed.add((row.env, row.suite_digest))
        if store is not target:
            _copy_records(store, target, needed)
    read = functools.cache(lambda root, env: Store(root).environment(env) or {})
    differing: list[Conflict] = []
    added: list[_Entry] = []
    new = 0
    for cell_id, entries in history.items():
        ranked = _by_weight(entries)
        found = _differences(cell_id, ranked, tolerance or {}, read)
        _copy_cell(cell_id, ranked, target, {item.other_from for item in found})
        missing, fresh = _missing(entries, ranked[0], target)
        added += missing
        new += fresh
        differing += found
    os.sync()  # the files of all cells before the rows that name them
    target.extend(entry.row for entry in added)
    return MergeReport(
        len(history),
        new,
        tuple(item for item in differing if item.found.conflicting),
        tuple(item for item in differing if not item.found.conflicting),
    )


def export(source: Store, target: Store, rows: Iterable[Row]) -> int:
    """Writes rows, environments, resolved suites and curves into a new folder; returns the number of rows.

    Raises:
        UsageError: If the target holds rows already.
    """
    if target.exists():
        raise UsageError(f"{target.root} holds rows already", hint="export into a new folder, or use `results merge`")
    chosen = list(rows)
    _copy_records(source, target, {(row.env, row.suite_digest) for row in chosen})
    for row in chosen:
        _copy_folder(source, row.cell_id, target.cell_dir(row.cell_id), only=_EXPORTED)
    os.sync()
    target.extend(chosen)
    return len(chosen)


def _by_weight(entries: Sequence[_Entry]) -> list[_Entry]:
    """Returns the last row of each folder, sorted so that the first one counts."""
    last = list({entry.store.root: entry for entry in entries}.values())
    ok = [entry for entry in last if entry.status == "ok"]
    rest = [entry for entry in last if entry.status != "ok"]
    return ok + sorted(rest, key=lambda entry: entry.ended, reverse=True)


def _differences(
    cell_id: str,
    ranked: Sequence[_Entry],
    tolerance: Mapping[str, float],
    read: Callable[[Path, str], Mapping[str, Any]],
) -> list[Conflict]:
    """Returns the results that differ from the one that counts; `read` returns an environment."""
    kept, *others = ranked
    results = [entry for entry in others if entry.status == "ok" and entry.line != kept.line]
    if kept.status != "ok" or not results:
        return []
    row, here, conflicts = kept.row, kept.store.root, []
    for entry in results:
        other, there = entry.row, entry.store.root
        found = compare(row, other, tolerance)
        if not found.equal:
            same = row.env == other.env
            environment = {} if same else environment_difference(read(here, row.env), read(there, other.env))
            conflicts.append(Conflict(cell_id, row.coords, here, there, found, row.env, other.env, environment))
    return conflicts


def _missing(entries: Sequence[_Entry], winner: _Entry, target: Store) -> tuple[list[_Entry], int]:
    """Returns the rows to append to the target, the one that counts last, and how many of them are new there."""
    have = [entry.digest for entry in entries if entry.store is target]
    lacking = {entry.digest: entry for entry in entries if entry.digest not in have}
    last = winner.digest
    lacking.pop(last, None)
    rows = list(lacking.values())
    if rows or not have or have[-1] != last:
        rows.append(winner)
    return rows, len(lacking) + (last not in have)


def _copy_records(source: Store, target: Store, needed: Iterable[tuple[str, str | None]]) -> None:
    """Copies environments and suites, if their content has the digest that names them."""
    for env in {env for env, _ in needed}:
        record = source.environment(env)
        if record is not None and digest(record) == env:
            target.save_environment(record)
    for suite in {suite for _, suite in needed if suite is not None}:
        record = source.suite(suite)
        if record is not None and digest(record) == suite:
            target.save_suite(record)


def _copy_cell(cell_id: str, ranked: Sequence[_Entry], target: Store, conflicting: set[Path]) -> None:
    winner = ranked[0]
    if winner.store is not target:
        _copy_folder(winner.store, cell_id, target.cell_dir(cell_id))
    for other in ranked[1:]:
        if other.store is not target and other.store.root in conflicting:
            place = target.root / "conflicts" / cell_id / other.digest.hex()[:16]
            _copy_folder(other.store, cell_id, place)
            write_atomic(place / "row.json", other.line + b"\n", durable=False)


def _copy_folder(source: Store, cell_id: str, place: Path, only: frozenset[str] | None = None) -> None:
    """Copies the regular files of a cell's folder, no links."""
    folder = source.cell_dir(cell_id)
    if folder.is_symlink() or folder.parent.is_symlink() or not folder.is_dir():
        return
    for entry in os.scandir(folder):
        name = entry.name
        wanted = name in only if only is not None else name not in _LEFT_BEHIND and not name.startswith(".")
        if wanted and entry.is_file(follow_symlinks=False):
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(handle, "rb") as file, replacing(place / name, durable=False) as copy:
                shutil.copyfileobj(file, copy)
