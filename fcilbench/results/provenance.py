"""Where a row comes from: environment, hardware, host and source code."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fcilbench.registry.entrypoints import normalise
from fcilbench.results.processor import processor

_GIT_SECONDS = 10.0
_PACKAGE = Path(__file__).resolve().parents[1]
_HARDWARE = ("machine", "cpu", "cpu_count", "memory_gib")
_WORKER_HARDWARE = ("gpu", "gpu_memory")
_ARITHMETIC = ("capability", "blas", "onednn", "rounding")
"""What of a worker's libraries decides how a processor computes; no records of earlier versions have it."""


@dataclass(frozen=True)
class Provenance:
    """Where rows are computed: the environment record with its digest `env`, and digests that tell machines apart."""

    environment: Mapping[str, Any] = field(repr=False)
    env: str
    hardware_digest: str
    host_digest: str
    git_sha: str | None
    dirty: bool | None


def capture(worker: Mapping[str, Any] | None = None) -> Provenance:
    """Returns the provenance of rows that a worker computes on this machine; `worker` is what it reports."""
    record = environment(worker)
    sha, dirty = source_state()
    return Provenance(record, digest(record), hardware_digest(record), host_digest(), sha, dirty)


def environment(worker: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the environment record, plain JSON without names of machines or users.

    A worker may run on another machine than this process: what it reports as its `machine` counts instead.
    """
    reported = dict(worker or {})
    return {**_own_environment(), **machine_facts(), **reported.pop("machine", {}), "worker": reported}


def digest(record: Mapping[str, Any]) -> str:
    """Returns `sha256:<hex>` of a JSON record, independent of the order of its keys.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    data = text.encode(errors="backslashreplace")  # a foreign record may hold half a character
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def hardware(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what of an environment record tells machines apart that differ in speed, as it is seen without torch."""
    worker = record.get("worker") or {}
    parts = {key: record.get(key) for key in _HARDWARE} | {key: worker.get(key) for key in _WORKER_HARDWARE}
    return parts | ({"processor": record["processor"]} if "processor" in record else {})


def same_hardware(record: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Returns whether two environment records name equal hardware, as far as both say what it is."""
    if record is None:
        return False
    one, two = hardware(record), hardware(other)
    return all(one[key] == two[key] for key in one.keys() & two.keys())


def hardware_digest(record: Mapping[str, Any]) -> str:
    """Returns the digest of the hardware and of how torch uses it; costs compare only where it is equal."""
    worker = record.get("worker") or {}
    return digest(hardware(record) | {key: worker[key] for key in _ARITHMETIC if key in worker})


@lru_cache(maxsize=1)
def host_digest() -> str:
    """Returns a digest of this machine's name and id, which tells machines apart without naming them."""
    try:
        machine_id = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        machine_id = ""
    return digest({"node": platform.node(), "machine_id": machine_id})


@lru_cache(maxsize=8)
def source_state(package: Path = _PACKAGE) -> tuple[str | None, bool | None]:
    """Returns the commit of the checkout that holds a package, and whether any of its files differ from it.

    Both are `None` without git, or if git does not track the package: a virtual environment may lie in a checkout.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    sha, changes = _git(package, "rev-parse", "HEAD"), _git(package, "status", "--porcelain", "--", ".")
    if not sha:
        return None, None
    return sha.strip(), None if changes is None else bool(changes.strip())


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns git's output, or `None` if it fails; GIT_* variables of the user are ignored."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@lru_cache(maxsize=1)
def machine_facts() -> dict[str, Any]:
    """Returns what an environment record says of the machine that this process runs on."""
    found = processor()
    return {
        "platform": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "cpu": found.pop("name") or platform.processor(),
        "processor": found,
        "cpu_count": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }


@lru_cache(maxsize=1)
def _own_environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "packages": _packages(),
    }


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for dist in importlib.metadata.distributions():
        name = dist.metadata["Name"] if dist.metadata is not None else None
        if name:  # a half-removed package leaves metadata without a name
            # The first of two copies is the one that an import finds.
            found.setdefault(normalise(name), dist.version)
    return dict(sorted(found.items()))


def software(record: Mapping[str, Any], dists: Iterable[str]) -> dict[str, Any]:
    """Returns what of an environment record matters to results: Python, distributions, and what they require here."""
    names = {*dists}
    for dist in tuple(names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            required = [each for each in importlib.metadata.requires(dist) or () if "extra ==" not in each]
            names |= {normalise(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in required}
    packages = record.get("packages", {})
    return {"python": record.get("python"), "packages": {name: packages[name] for name in packages if name in names}}
