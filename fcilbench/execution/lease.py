"""Leases: which process works on a cell, so that runs can share a store and a dead run blocks nobody.

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
from pathlib import Path

from filelock import FileLock, Timeout

from fcilbench.files import write_atomic
from fcilbench.results.foreign import RefusedError, open_regular, read_regular
from fcilbench.results.provenance import host_digest
from fcilbench.results.store import Store

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0
LEASE, _LOCK = "lease.json", "lease.lock"
_BYTES = 65_536
"""Most bytes of such a file."""
_LOCK_SECONDS = 0.3  # `fcilbench plan` holds the lock for a moment to see whether it is free


@dataclass(frozen=True)
class Owner:
    """The process that holds a lease.

    Attributes:
        namespace: PID namespace; two containers on one host have different ones.
        heartbeat: Seconds since the epoch of its last sign of life.
    """

    token: str
    host: str
    namespace: str
    pid: int
    heartbeat: float

    def alive(self, now: float, held: bool) -> bool:
        """Returns whether the owner still works: by the lock (`held`) if it is on this host, else by its heartbeat.

        Another container on this host may not see our locks, so its heartbeat counts, too.
        """
        beside = (self.host, self.namespace) == (host_digest(), _namespace())
        return held if beside else now - self.heartbeat < STALE_SECONDS

    def __str__(self) -> str:
        here = "this host" if self.host == host_digest() else f"host {self.host.removeprefix('sha256:')[:8]}"
        return f"process {self.pid} on {here}"


class Lease:
    """The lease of one cell, held by this process."""

    def __init__(self, folder: Path, owner: Owner, lock: FileLock) -> None:
        self._path = folder / LEASE
        self._owner = owner
        self._lock = lock
        self.beat(first=True)

    def beat(self, first: bool = False) -> bool:
        """Renews the heartbeat; returns `False` if another process has taken the lease meanwhile."""
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
    """Takes the lease of a cell's folder, also that of a dead owner, or returns the living owner."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, held = FileLock(folder / _LOCK), False
    try:
        lock.acquire(timeout=_LOCK_SECONDS, poll_interval=0.02)
    except Timeout:
        held = True
    except NotImplementedError:  # a shared disk without locks: the heartbeat alone counts
        pass
    me = Owner(uuid.uuid4().hex, host_digest(), _namespace(), os.getpid(), time.time())
    owner = read(folder) or (replace(me, pid=0) if held else None)  # its owner has not written its name yet
    if owner is not None and owner.alive(time.time(), held):
        lock.release()
        return owner
    return Lease(folder, me, lock)


def living_owner(folder: Path) -> Owner | None:
    """Returns the process that works on a cell now, if there is one; writes nothing."""
    owner = read(folder)
    return owner if owner is not None and owner.alive(time.time(), _held(folder / _LOCK)) else None


def running_cells(store: Store) -> dict[str, str]:
    """Returns the cells of a store that a living process works on, each with that process; writes nothing."""
    folders = (path.parent for path in store.root.glob(f"cells/*/{LEASE}"))
    return {folder.name: str(owner) for folder in folders if (owner := living_owner(folder)) is not None}


def read(folder: Path) -> Owner | None:
    """Returns the owner that the lease file names, dead or alive; `None` if there is no valid file."""
    try:
        owner = Owner(**json.loads(read_regular(folder, LEASE, _BYTES) or b""))
    except (OSError, ValueError, TypeError, RecursionError, RefusedError):
        return None
    texts, numbers = (owner.token, owner.host, owner.namespace), (owner.pid, owner.heartbeat)
    fits = all(isinstance(each, str) for each in texts) and all(isinstance(each, int | float) for each in numbers)
    return owner if fits else None  # the folder may be a stranger's


def _held(lock: Path) -> bool:
    with suppress(OSError, RefusedError), open_regular(lock.parent, lock.name, _BYTES) as handle:
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
