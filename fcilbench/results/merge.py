"""Merges results folders, and exports the rows and files that a leaderboard needs."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from fcilbench.errors import UsageError
from fcilbench.files import replacing, write_atomic
from fcilbench.results.agreement import EQUAL, expected
from fcilbench.results.compare import Comparison, compare, environment_difference
from fcilbench.results.curves import own_file
from fcilbench.results.foreign import MAX_FILES, DamagedError, RefusedError, open_regular, refuse_links
from fcilbench.results.lines import Line
from fcilbench.results.private import publish
from fcilbench.results.provenance import digest
from fcilbench.results.store import Store, row_of
from fcilbench.spec.row import Row

_log = logging.getLogger(__name__)
_LEFT_BEHIND = frozenset(
    {
        "cell.json",
        "checkpoint.pt",
        "events.jsonl",
        "lease.json",
        "lease.lock",
        "module.safetensors",
        "row.json",
        "rounds.jsonl",
    }
)
"""Files of a cell's folder that are not copied; `cell.json` would make the target's own checkpoint valid."""


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


class _Entry(NamedTuple):
    """What a merge keeps of a row: where it stands, and what decides which one counts."""

    store: Store
    line: Line
    cell_id: str
    digest: str
    status: str
    ended: datetime
    unstarted: bool

    @classmethod
    def of(cls, store: Store, line: Line, row: Row) -> _Entry:
        """Returns the entry of a row, without its text: those of all rows would fill the memory."""
        return cls(store, line.place(), row.cell_id, row.digest, row.status, row.ended, row.unstarted)


def merge(sources: Sequence[Store], target: Store, tolerance: Mapping[str, float] | None = None) -> MergeReport:
    """Merges results folders into a target, which may hold rows already.

    The target gets every row of every folder. Of the rows of one cell, the one that counts is written last: a result
    (`ok`) before any other status, then the target's row, then the order of the sources; of rows without a result, the
    latest. Its curve and files are copied, with environments and resolved suites; those of a row that differs go to
    `conflicts/<cell_id>/<row digest>/`. Checkpoints, models and leases are not copied, symbolic links not followed.
    Merging the same folders again adds nothing and finds the same conflicts.

    Results that were computed by other code, libraries or processors are held to the measured spread, all others to
    equal bits (`fcilbench.results.agreement`); `tolerance` is what `fcilbench.results.compare.compare` is `given`.

    Raises:
        UsageError: If a source holds no rows, or a file of the target, into which is written, is a link.
    """
    for source in sources:
        if not source.exists():
            raise UsageError(f"{source.root} holds no rows.jsonl", hint="name folders written by `fcilbench run --out`")
    for name in ("rows.jsonl", "store.json", "cells", "conflicts"):
        refuse_links(target.root, name)
    history: dict[str, list[_Entry]] = defaultdict(list)
    for store in [target, *(each for each in sources if each.root.resolve() != target.root.resolve())]:
        needed = set()
        for line, row in store.entries():
            history[row.cell_id].append(_Entry.of(store, line, row))
            needed.add((row.env, row.suite_digest))
        if store is not target:
            _copy_records(store, target, needed)
    ranked = {cell_id: _by_weight(entries) for cell_id, entries in history.items()}
    coming = [(first.store, cell_id) for cell_id, (first, *_) in ranked.items() if first.store is not target]
    _copy_curves(coming, target)
    for store, cell_id in coming:
        _copy_files(store, cell_id, target, f"cells/{cell_id}")
    differing = [each for found in ranked.values() for each in _conflicts(found, target, tolerance or {})]
    added: list[_Entry] = []
    new = 0
    for cell_id, entries in history.items():
        winner = ranked[cell_id][0]
        held = [entry.digest for entry in entries if entry.store is target]
        lacking = {entry.digest: entry for entry in entries if entry.digest not in held}
        earlier = [entry for entry in lacking.values() if entry.digest != winner.digest]
        added += earlier
        if earlier or held[-1:] != [winner.digest]:
            added.append(winner)
        new += len(lacking)
    os.sync()  # the files of all cells before the rows that name them
    if added:
        target.extend_json(_texts(added))
    conflicts, remarks = (tuple(c for c in differing if c.found.conflicting is real) for real in (True, False))
    return MergeReport(len(history), new, conflicts, remarks)


def export(source: Store, target: Store, rows: Sequence[Row]) -> None:
    """Writes rows into a new folder, with their environments, resolved suites and curves, without home directories.

    The text of a row that stands in the source is kept, as is that of events: no number is read and written anew.

    Args:
        source: The folder that the rows are from.
        target: The new folder.
        rows: One row of each cell, in the order in which they are written.

    Raises:
        UsageError: If the target holds rows already.
    """
    if target.exists():
        raise UsageError(f"{target.root} holds rows already", hint="export into a new folder, or use `results merge`")
    rows = publish(source, target, rows)
    _copy_records(source, target, {(row.env, row.suite_digest) for row in rows})
    _copy_curves([(source, row.cell_id) for row in rows], target)
    found = {row.digest: _Entry.of(source, line, row) for line, row in source.entries()}
    kept = dict(_texts([entry for row in rows if (entry := found.get(row.digest))]))
    os.sync()
    target.extend_json((row.cell_id, kept.get(row.cell_id) or row.to_json().encode()) for row in rows)


def _texts(entries: Iterable[_Entry]) -> Iterator[tuple[str, bytes]]:
    """Yields the cell id and the JSON text of each row, as it stands in its folder."""
    with ExitStack() as stack:
        files: dict[Path, IO[bytes]] = {}
        for each in entries:
            root, name = each.store.root, each.store.rows_path.name
            if root not in files:
                files[root] = stack.enter_context(open_regular(root, name))
            line = each.line.again(files[root])
            try:
                yield each.cell_id, line.content()
            except DamagedError as error:
                raise UsageError(f"{root / name}:{line.number} was changed while it was read: {error}") from error


def _row(entry: _Entry) -> Row:
    with open_regular(entry.store.root, entry.store.rows_path.name) as file:
        return row_of(entry.line.again(file))


def _by_weight(entries: Sequence[_Entry]) -> list[_Entry]:
    """Returns the last row of each folder, as `Store.latest` has it, sorted so that the first one counts."""
    found: dict[Path, _Entry] = {}
    for entry in entries:
        if not entry.unstarted or entry.store.root not in found:
            found[entry.store.root] = entry
    last = list(found.values())
    lost = [entry for entry in last if entry.status != "ok"]
    return [each for each in last if each.status == "ok"] + sorted(lost, key=lambda each: each.ended, reverse=True)


def _conflicts(entries: Sequence[_Entry], target: Store, tolerance: Mapping[str, float]) -> Iterator[Conflict]:
    """Yields how rows of a cell differ from the first one, which counts; keeps the files of those that do aside."""
    winner = entries[0]
    for other in entries[1:]:
        if not winner.status == other.status == "ok" or other.digest == winner.digest:
            continue
        kept, row = _row(winner), _row(other)
        records = winner.store.environment(kept.env), other.store.environment(row.env)
        # A row whose environment did not travel with it has nothing to explain a difference.
        found = compare(kept, row, EQUAL if None in records else expected(kept, row, records), tolerance)
        if not found.differences and not found.digests:
            continue
        environment = {} if kept.env == row.env else environment_difference(records[0] or {}, records[1] or {})
        if other.store is not target:
            refuse_links(target.root, f"conflicts/{row.cell_id}/{row.digest[:16]}/row.json")
            place = f"conflicts/{row.cell_id}/{row.digest[:16]}"
            _copy_files(other.store, row.cell_id, target, place)
            if curve := other.store.rounds(row.cell_id):
                lines = "".join(json.dumps(event) + "\n" for event in curve)
                write_atomic(target.root / place / "rounds.jsonl", lines, durable=False)
            write_atomic(target.root / place / "row.json", f"{row.to_json()}\n", durable=False)
        yield Conflict(winner.store.root, kept, other.store.root, row, found, environment)


def _copy_records(source: Store, target: Store, needed: Iterable[tuple[str, str | None]]) -> None:
    """Copies environments and suites, if their content has the digest that names them."""
    found = set(needed)
    for env in sorted({env for env, _ in found}):
        record = source.environment(env)
        if record is not None and digest(record) == env:
            target.save_environment(record)
    for suite in sorted({suite for _, suite in found if suite is not None}):
        record = source.suite(suite)
        if record is not None and digest(record) == suite:
            target.save_suite(record)


def _copy_curves(cells: Iterable[tuple[Store, str]], target: Store) -> None:
    """Copies the curves of cells, each from the folder of its row."""

    def published() -> Iterator[bytes]:
        for store, cell_id in cells:
            content = store.curves.content(cell_id)
            if content is None:
                continue
            own = target.root / own_file(cell_id)
            if os.path.lexists(own):  # it would count before that of `curves.jsonl`
                refuse_links(target.root, own_file(cell_id))
                own.unlink()
            yield content

    target.curves.add(published())


def _copy_files(source: Store, cell_id: str, target: Store, place: str) -> None:
    """Copies the other files of a cell's folder, regular ones only, to a place in the target."""
    folder = f"cells/{cell_id}"
    try:
        refuse_links(source.root, folder)
        if not (source.root / folder).is_dir():
            return
        with os.scandir(source.root / folder) as found:
            names = [each.name for each in islice(found, MAX_FILES) if each.is_file(follow_symlinks=False)]
        for name in names:
            if name in _LEFT_BEHIND or name.startswith("."):
                continue
            refuse_links(target.root, f"{place}/{name}")
            copy = replacing(target.root / place / name, durable=False)
            with open_regular(source.root, f"{folder}/{name}") as file, copy as into:
                shutil.copyfileobj(file, into)
    except RefusedError as error:
        _log.warning("not copied: %s", error)
