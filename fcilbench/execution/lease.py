"""Leases: who is working on a cell, so that two runs may share one store and a dead run blocks nobody.

Beside them, in `cell.json`, lies what is remembered of earlier attempts.

A supervisor holds a file lock on `lease.lock` in the cell's folder while it works; the system frees it when the process
dies. `lease.json` beside it names the owner, with a heartbeat for hosts that share the folder but not its locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from fcilbench.execution.rows import RowWriter, Task
from fcilbench.files import write_atomic
from fcilbench.results.provenance import host_digest
from fcilbench.results.row import code_digest
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0
_FILE, _LOCK, _NOTE = "lease.json", "lease.lock", "cell.json"
_LEFT_OVER = ("checkpoint.pt", "rounds.jsonl", "traceback.txt")
_BROKEN_OFF = frozenset({"killed", "oom", "timeout", "interrupted"})
_LOCK_SECONDS = 0.3  # `fcilbench plan` holds the lock for a moment when it looks at it


@dataclass(frozen=True)
class Owner:
    """Who holds a lease.

    Attributes:
        token: Unique to one lease.
        host: Digest of the host.
        namespace: PID namespace of the process; two containers of one host have different ones.
        pid: Process of the supervisor.
        heartbeat: Seconds since the epoch of its last sign of life.
    """

    token: str
    host: str
    namespace: str
    pid: int
    heartbeat: float

    def alive(self, now: float, held: bool) -> bool:
        """Says whether the owner is still at work: by the lock (`held`) if it is on this host, else by its heartbeat.

        Another container of this host may not see our locks, so its heartbeat counts.
        """
        beside = (self.host, self.namespace) == (host_digest(), _namespace())
        return held if beside else now - self.heartbeat < STALE_SECONDS

    def __str__(self) -> str:
        here = "this host" if self.host == host_digest() else f"host {self.host.removeprefix('sha256:')[:8]}"
        return f"process {self.pid} on {here}"


class Lease:
    """The lease of one cell, held by this process."""

    def __init__(self, folder: Path, owner: Owner, lock: FileLock) -> None:
        self._path = folder / _FILE
        self._owner = owner
        self._lock = lock
        self.beat(first=True)

    def beat(self, first: bool = False) -> bool:
        """Renews the heartbeat; returns False if the lease was taken by somebody else meanwhile."""
        if not first and not self._ours():
            return False
        content = json.dumps(asdict(replace(self._owner, heartbeat=time.time())))
        write_atomic(self._path, content, durable=False)
        return True

    def release(self) -> None:
        """Gives the cell back."""
        if self._ours():
            self._path.unlink(missing_ok=True)
        self._lock.release()

    def _ours(self) -> bool:
        owner = read(self._path.parent)
        return owner is not None and owner.token == self._owner.token


def acquire(folder: Path) -> Lease | Owner:
    """Takes the lease of a cell's folder, or returns the living owner who has it; a dead owner's is reclaimed."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, held = FileLock(folder / _LOCK), False
    try:
        lock.acquire(timeout=_LOCK_SECONDS, poll_interval=0.02)
    except Timeout:
        held = True
    except NotImplementedError:  # a shared disk without locks: the heartbeat must do
        pass
    me = Owner(uuid.uuid4().hex, host_digest(), _namespace(), os.getpid(), time.time())
    owner = read(folder) or (replace(me, pid=0) if held else None)  # who holds the lock has not written its name yet
    if owner is not None and owner.alive(time.time(), held):
        lock.release()
        return owner
    return Lease(folder, me, lock)


def living_owner(folder: Path) -> Owner | None:
    """Returns who works on a cell just now, without writing anything."""
    owner = read(folder)
    return owner if owner is not None and owner.alive(time.time(), _held(folder / _LOCK)) else None


def read(folder: Path) -> Owner | None:
    """Returns the owner that the lease file names, dead or alive; a file that is no lease names nobody."""
    try:
        return Owner(**json.loads((folder / _FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _held(lock: Path) -> bool:
    with suppress(OSError), lock.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        return ""


def take(task: Task, writer: RowWriter) -> Lease | Owner | Row:
    """Takes a cell for one more attempt, and counts the attempt.

    Returns:
        The lease; or the living owner who works on the cell; or the row that another run has ended it with meanwhile.
    """
    folder = writer.store.make_cell_dir(task.cell_id)
    held = acquire(folder)
    if isinstance(held, Owner):
        return held
    finished = writer.finished_meanwhile(task)
    if finished is not None:
        held.release()
        return finished
    if not task.attempts:
        task.started = datetime.now(UTC)
        task.earlier = _resumable(folder, task.cell, task.known)
        if not task.earlier:
            for name in _LEFT_OVER:  # before the note below, which vouches for what lies in the folder
                (folder / name).unlink(missing_ok=True)
    task.attempts += 1
    attempts = task.earlier + task.attempts
    note = {"attempts": attempts, "code_digest": code_digest(task.cell), "cell": task.cell.model_dump(mode="json")}
    write_atomic(folder / _NOTE, json.dumps(note, indent=1) + "\n")
    return held


def _resumable(folder: Path, cell: Cell, known: Row | None) -> int:
    """Returns how many attempts a new one may go on from; 0 if a checkpoint in the cell's folder is void.

    They may be gone on from if they broke off (a finished or failed one is repeated from the start) and were made by
    the same plugin code. Without a row (`known`) an attempt may have ended with its whole run.
    """
    if known is not None and known.status not in _BROKEN_OFF:
        return 0
    try:
        record = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        return int(record["attempts"]) if record["code_digest"] == code_digest(cell) else 0
    except (OSError, ValueError, TypeError, KeyError):
        return 0
