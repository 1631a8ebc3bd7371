"""Leases: who is working on a cell, so that two runs may share one store and a dead run blocks nobody.

A lease is `cells/<id>/lease.json` with the owner's host, process and heartbeat. On the owner's host its process tells
whether it lives; elsewhere its heartbeat does. All changes happen under a file lock, which the system frees when its
holder dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fcilbench.results.provenance import host_digest

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0
_FILE = "lease.json"


@dataclass(frozen=True)
class Owner:
    """Who holds a lease.

    Attributes:
        token: Unique to one lease.
        host: Digest of the host.
        pid: Process of the supervisor.
        birth: When that process began, so that a reused process id is not mistaken for it; empty if unknown.
        heartbeat: Seconds since the epoch of its last sign of life.
    """

    token: str
    host: str
    pid: int
    birth: str
    heartbeat: float

    def alive(self, now: float) -> bool:
        """Whether the owner is still at work: its process on this host, its heartbeat elsewhere."""
        if self.host != host_digest():
            return now - self.heartbeat < STALE_SECONDS
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it lives, and belongs to another user
        return _birth(self.pid) in ("", self.birth)

    def __str__(self) -> str:
        here = "this host" if self.host == host_digest() else f"host {self.host[:8]}"
        return f"process {self.pid} on {here}"


class Lease:
    """The lease of one cell, held by this process."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self._token = token

    def beat(self) -> bool:
        """Renews the heartbeat; returns False if the lease was taken by somebody else meanwhile."""
        with _locked(self._folder):
            if not self._ours():
                return False
            _write(self._folder, _me(self._token))
            return True

    def release(self) -> None:
        """Gives the cell back."""
        with _locked(self._folder):
            if self._ours():
                (self._folder / _FILE).unlink(missing_ok=True)

    def _ours(self) -> bool:
        owner = read(self._folder)
        return owner is not None and owner.token == self._token


def acquire(folder: Path) -> Lease | Owner:
    """Takes the lease of a cell.

    Args:
        folder: The cell's folder; created if it is missing.

    Returns:
        The lease, or the living owner who has it. A dead owner's lease is reclaimed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        owner = read(folder)
        if owner is not None and owner.alive(time.time()):
            return owner
        token = uuid.uuid4().hex
        _write(folder, _me(token))
        return Lease(folder, token)


def living_owner(folder: Path) -> Owner | None:
    """Returns who works on a cell just now, without touching anything."""
    owner = read(folder)
    return owner if owner is not None and owner.alive(time.time()) else None


def read(folder: Path) -> Owner | None:
    """Returns the owner that the lease file names, dead or alive; a file that is no lease names nobody."""
    try:
        return Owner(**json.loads((folder / _FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _me(token: str) -> Owner:
    pid = os.getpid()
    return Owner(token=token, host=host_digest(), pid=pid, birth=_birth(pid), heartbeat=time.time())


def _birth(pid: int) -> str:
    """Returns when a process began, as this boot's id and clock ticks since then, or that it is over.

    Empty where the system does not say (Linux only). A zombie answers signals but works no more.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "over" if state in "ZX" else f"{boot}/{fields[18]}"


def _write(folder: Path, owner: Owner) -> None:
    temporary = folder / f"{_FILE}.{owner.token}"
    temporary.write_text(json.dumps(asdict(owner)))
    os.replace(temporary, folder / _FILE)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lease.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
