"""Merges results folders: a union by `cell_id` that loses nothing and reports what disagrees."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fcilbench.errors import UsageError
from fcilbench.results.conflicts import Candidate, Conflict, conflicts_of
from fcilbench.results.store import Store
from fcilbench.spec.row import Row

_LEFT_BEHIND = {"checkpoint.pt", "lease.json"}


@dataclass(frozen=True)
class MergeReport:
    """What a merge did.

    Attributes:
        cells: Cells in the target afterwards.
        added: Rows appended to the target (earlier attempts and losing rows included).
        conflicts: Cells on which results disagree.
    """

    cells: int
    added: int
    conflicts: tuple[Conflict, ...]


def merge(sources: Sequence[Store], target: Store, tolerance: Mapping[str, float] | None = None) -> MergeReport:
    """Merges results folders into one.

    Every row of every folder ends in the target's `rows.jsonl`, the one that counts last. A result (`ok`) counts
    before any other status, then what the target holds, then the order of the sources; of rows without a result the
    latest counts. Files of a cell come from the folder of the row that counts; those of a row that disagrees go to
    `conflicts/<cell_id>/<row digest>/`. Checkpoints and leases stay where they are. Sources are only read.

    Args:
        sources: Folders to read.
        target: Folder to write; it may hold rows already.
        tolerance: Largest absolute difference by metric name or pattern (`faa/*`); the first pattern that fits
            counts, else `DEFAULT_TOLERANCE`.

    Returns:
        What was added and what disagrees. Merging the same folders again adds nothing and disagrees on the same.

    Raises:
        UsageError: If a source holds no rows.
    """
    for source in sources:
        if not source.exists():
            raise UsageError(f"{source.root} holds no rows.jsonl", hint="name folders written by `fcilbench run --out`")
    stores = [target, *(source for source in sources if source.root.resolve() != target.root.resolve())]
    candidates: dict[str, list[Candidate]] = {}
    history: dict[str, list[Row]] = {}
    for store in stores:
        for row in store.rows():
            history.setdefault(row.cell_id, []).append(row)
        for cell_id, row in store.latest().items():
            candidates.setdefault(cell_id, []).append(Candidate(row, store))
    order = {cell_id: _by_weight(found) for cell_id, found in candidates.items()}
    _copy_environments(stores, target)
    conflicts = [item for ranked in order.values() for item in conflicts_of(ranked, tolerance or {})]
    for ranked in order.values():
        _copy_files(ranked, target, {item.other_from for item in conflicts if item.cell_id == ranked[0].row.cell_id})
    added = _append_rows(order, history, target)
    return MergeReport(len(order), added, tuple(conflicts))


def _by_weight(found: Iterable[Candidate]) -> list[Candidate]:
    """Orders a cell's rows so that the first one counts; equal ones keep the order of the folders."""
    ok = [item for item in found if item.row.status == "ok"]
    rest = [item for item in found if item.row.status != "ok"]
    return ok + sorted(rest, key=lambda item: item.row.ended, reverse=True)


def _copy_environments(stores: Iterable[Store], target: Store) -> None:
    for store in stores:
        for row in store.rows():
            record = store.environment(row.env)
            if record is not None and target.environment(row.env) is None:
                target.save_environment(record)


def _copy_files(ranked: Sequence[Candidate], target: Store, conflicting: set[Path]) -> None:
    winner = ranked[0]
    if winner.store is not target:
        _copy_folder(winner.store.cell_dir(winner.row.cell_id), target.cell_dir(winner.row.cell_id))
    for other in ranked[1:]:
        if other.store is not target and other.store.root in conflicting:
            place = target.root / "conflicts" / other.row.cell_id / other.row.digest[:16]
            _copy_folder(other.store.cell_dir(other.row.cell_id), place)


def _copy_folder(source: Path, place: Path) -> None:
    """Copies a cell's files, each under a temporary name that is then renamed."""
    if not source.is_dir():
        return
    place.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if not file.is_file() or file.name in _LEFT_BEHIND or file.name.startswith("."):
            continue
        temporary = place / f".{file.name}.merge.tmp"
        shutil.copy2(file, temporary)
        temporary.replace(place / file.name)


def _append_rows(order: Mapping[str, Sequence[Candidate]], history: Mapping[str, Sequence[Row]], target: Store) -> int:
    """Appends the rows the target lacks, and the one that counts again if it is not the last of its cell."""
    present: dict[str, list[str]] = {}
    for row in target.rows():
        present.setdefault(row.cell_id, []).append(row.digest)
    added = 0
    for cell_id, ranked in order.items():
        have, winner = present.get(cell_id, []), ranked[0].row
        missing = {row.digest: row for row in history[cell_id] if row.digest not in have}
        missing.pop(winner.digest, None)
        for row in missing.values():
            target.extend([row])
        added += len(missing)
        if missing or not have or have[-1] != winner.digest:
            target.extend([winner])
            added += winner.digest not in have
    return added
