"""Answers of the registry's child process on disk, valid as long as the files that they depend on are unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fcilbench

CACHE = "FCILBENCH_CACHE"
"""Environment variable: folder of the cache; unset means the user's cache folder."""

_ANSWERING = ("spec", "api", "registry", "data")
"""Rooms whose code makes a plugin's answers, beside the plugin's own."""

Stamp = tuple[str, str, int, int]
"""A file as it was: path as given, absolute path, size in bytes, modification time in ns."""


def cache_root() -> Path:
    """Returns the folder of the cache; it need not exist."""
    override = os.environ.get(CACHE)
    if override:
        return Path(override)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fcilbench"))


class AnswerCache:
    """Looks answers up and stores them; made anew for each batch of questions, so that each file is looked at once.

    An entry is found by its question and the installed packages, and holds if the plugin's sources and the files that
    its identity depends on have the size and the time that they had. A corrupt or unreadable entry does not hold, and a
    cache that cannot be written is done without.
    """

    def __init__(self) -> None:
        self._folder = cache_root() / "registry-1"
        self._environment = environment_key()
        self._stamps: dict[str, Stamp | None] = {}
        self._origins: dict[str, str] = {}

    def get(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the answer to a question if it still holds."""
        try:
            entry = json.loads(self._path(question).read_text())
            stamps, answer = entry["stamps"], entry["answer"]
            if all(list(self._stamp(stamp[0]) or ()) == stamp for stamp in stamps) and isinstance(answer, dict):
                return answer
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            pass
        return None

    def put(self, question: dict[str, Any], answer: dict[str, Any], files: Iterable[str]) -> None:
        """Stores an answer.

        Args:
            question: What was asked.
            answer: JSON-compatible.
            files: The files it depends on. If one of them is gone, nothing is stored.
        """
        stamps = [self._stamp(path) for path in files]
        if None in stamps:
            return
        target = self._path(question)
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".tmp", delete=False) as file:
                json.dump({"stamps": stamps, "answer": answer}, file)
            os.replace(file.name, target)

    def _path(self, question: dict[str, Any]) -> Path:
        # Options may name files, which are looked up from these two.
        places = [os.environ.get("FCILBENCH_DATA"), os.getcwd()] if question.get("options") else []
        key = [question, self._environment, self._origin(question["ref"]["target"]), places]
        return self._folder / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()}.json"

    def _origin(self, target: str) -> str:
        """Returns where the plugin's package would be imported from, without importing it."""
        top = target.partition(":")[0].partition(".")[0]
        if top not in self._origins:
            try:
                spec = find_spec(top)
            except (ImportError, ValueError):
                spec = None
            places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
            self._origins[top] = repr(places)
        return self._origins[top]

    def _stamp(self, path: str) -> Stamp | None:
        if path not in self._stamps:
            try:
                stat = os.stat(path)
                self._stamps[path] = (path, os.path.abspath(path), stat.st_size, stat.st_mtime_ns)
            except OSError:
                self._stamps[path] = None
        return self._stamps[path]


def environment_key() -> str:
    """Returns a digest of interpreter, installed distributions and the source of the rooms that make answers.

    A plugin's answer can depend on any package that it imports, so the names of all `*.dist-info` folders (they carry
    the version) are in it: installing or upgrading a package asks every plugin again.
    """
    digest = hashlib.sha256(f"{fcilbench.__version__} {platform.python_version()} {sys.prefix}".encode())
    for entry in sys.path:
        with contextlib.suppress(OSError):
            names = sorted(name for name in os.listdir(entry or ".") if name.endswith((".dist-info", ".egg-info")))
            if names:
                digest.update(f"\0{entry}\0{names}".encode())
    package = Path(__file__).parent.parent
    for path in sorted(path for room in _ANSWERING for path in package.joinpath(room).glob("*.py")):
        digest.update(f"\0{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    return digest.hexdigest()
