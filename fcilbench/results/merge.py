"""Merges results folders, and exports the rows and files that a leaderboard needs."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.errors import UsageError
from fcilbench.files import replacing, write_atomic
from fcilbench.results.compare import Comparison, compare, environment_difference
from fcilbench.results.private import publish
from fcilbench.results.provenance import digest
from fcilbench.results.store import Store
from fcilbench.spec.row import Row

_LEFT_BEHIND = frozenset({"checkpoint.pt", "lease.json", "module.safetensors", "row.json"})
_EXPORTED = frozenset({"rounds.jsonl"})


@dataclass(frozen=True)
class Conflict:
    """Two results of one cell that differ: the one that counts (`kept`) and the other one, with their folders.

    `environment` holds the dotted keys at which their environments differ, with both values.
    """

    kept_from: Path
    kept: Row
    other_from: Path
    other: Row
    found: Comparison
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
    history: dict[str, list[tuple[Store, Row]]] = defaultdict(list)
    for store in [target, *(each for each in sources if each.root.resolve() != target.root.resolve())]:
        rows = list(store.scan())
        for row in rows:
            history[row.cell_id].append((store, row))
        if store is not target:
            _copy_records(store, target, rows)
    differing: list[Conflict] = []
    added: list[Row] = []
    new = 0
    for cell_id, entries in history.items():
        (home, winner), *others = _by_weight(entries)
        if home is not target:
            _copy_cell(home, cell_id, target.cell_dir(cell_id))
        for store, row in others:
            conflict = _conflict(home, winner, store, row, tolerance or {})
            differing += [conflict] if conflict else []
            if conflict and store is not target:
                place = target.root / "conflicts" / cell_id / row.digest[:16]
                _copy_cell(store, cell_id, place)
                write_atomic(place / "row.json", f"{row.to_json()}\n", durable=False)
        held = [row.digest for store, row in entries if store is target]
        lacking = {row.digest: row for _, row in entries if row.digest not in held}
        earlier = [row for row in lacking.values() if row.digest != winner.digest]
        added += earlier
        if earlier or held[-1:] != [winner.digest]:
            added.append(winner)
        new += len(lacking)
    os.sync()  # the files of all cells before the rows that name them
    target.extend(added)
    conflicts, remarks = (tuple(c for c in differing if c.found.conflicting is real) for real in (True, False))
    return MergeReport(len(history), new, conflicts, remarks)


def export(source: Store, target: Store, rows: Sequence[Row]) -> None:
    """Writes rows, environments, resolved suites and curves into a new folder, without home directories.

    Raises:
        UsageError: If the target holds rows already.
    """
    if target.exists():
        raise UsageError(f"{target.root} holds rows already", hint="export into a new folder, or use `results merge`")
    rows = publish(source, target, rows)
    _copy_records(source, target, rows)
    for row in rows:
        _copy_cell(source, row.cell_id, target.cell_dir(row.cell_id), only=_EXPORTED)
    os.sync()
    target.extend(rows)


def _by_weight(entries: Sequence[tuple[Store, Row]]) -> list[tuple[Store, Row]]:
    """Returns the last row of each folder, sorted so that the first one counts."""
    last = list({store.root: (store, row) for store, row in entries}.values())
    lost = [entry for entry in last if entry[1].status != "ok"]
    return [each for each in last if each not in lost] + sorted(lost, key=lambda each: each[1].ended, reverse=True)


def _conflict(home: Store, kept: Row, store: Store, other: Row, tolerance: Mapping[str, float]) -> Conflict | None:
    """Returns how a row differs from the one that counts; `None` if it does not, or if one of them has no result."""
    if not kept.status == other.status == "ok":
        return None
    found = compare(kept, other, tolerance)
    if not found.differences and not found.digests:
        return None
    here, there = home.environment(kept.env) or {}, store.environment(other.env) or {}
    environment = {} if kept.env == other.env else environment_difference(here, there)
    return Conflict(home.root, kept, store.root, other, found, environment)


def _copy_records(source: Store, target: Store, rows: Iterable[Row]) -> None:
    """Copies the environments and suites of rows, if their content has the digest that names them."""
    needed = {(row.env, row.suite_digest) for row in rows}
    for env in {env for env, _ in needed}:
        record = source.environment(env)
        if record is not None and digest(record) == env:
            target.save_environment(record)
    for suite in {suite for _, suite in needed if suite is not None}:
        record = source.suite(suite)
        if record is not None and digest(record) == suite:
            target.save_suite(record)


def _copy_cell(source: Store, cell_id: str, place: Path, only: frozenset[str] | None = None) -> None:
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
