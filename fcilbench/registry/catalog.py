"""Describes plugins and validates their options: a worker process answers, and the answers are cached.

Nothing here imports a plugin, and a warm cache starts no process. A failure is never cached, since its reason may be
something that the cache cannot see (a missing library, a file, a variable).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fcilbench
from fcilbench.errors import Problem
from fcilbench.files import cache_root, write_atomic
from fcilbench.registry.entrypoints import PluginRef
from fcilbench.worker.process import Asker


@dataclass(frozen=True)
class Description:
    """One plugin as `plugins show` prints it.

    Attributes:
        facts: What its class declares: counts, default tasks, licence.
        defaults: Default of each option that has one.
        origin: `file:line` of the class.
        code_digest: Digest of its normalised source (`fcilbench.registry.digest`).
        seconds: Time of its import, with the packages that no plugin before it has imported.
        problem: Why it cannot be used here, or `None`.
        needs: What to do about it, if it says so: the command that installs an optional package.
    """

    ref: PluginRef
    version: str = ""
    summary: str = ""
    schema: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    code_digest: str = ""
    seconds: float = 0.0
    problem: str | None = None
    needs: str | None = None

    @property
    def fault(self) -> str:
        """What lists say in place of its summary: what it needs, or why it is broken; "" if it can be used."""
        return f"needs: {self.needs}" if self.needs else f"broken: {self.problem}" if self.problem else ""

    @property
    def field_names(self) -> tuple[str, ...]:
        """Legal keys of the plugin in a suite."""
        return tuple(self.schema.get("properties", ()))


@dataclass(frozen=True)
class Resolved:
    """A plugin with its options; without `problems` it can be used.

    Attributes:
        identity: What of the parameters identifies a cell.
        prerequisite: Whether it cannot because something is missing on this machine (a weight file, a package), so
            that the suite itself may be right.
    """

    version: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    code_digest: str = ""
    problems: tuple[Problem, ...] = ()
    prerequisite: bool = False


_open: list[tuple[Asker, str]] = []


@contextlib.contextmanager
def session() -> Iterator[tuple[Asker, str]]:
    """Keeps one worker process, and the digest of its environment, for all questions within the block."""
    if _open:
        yield _open[0]
        return
    with contextlib.closing(Asker()) as asker:
        _open.append((asker, environment_key()))
        try:
            yield _open[0]
        finally:
            _open.clear()


def describe(refs: Sequence[PluginRef]) -> list[Description]:
    """Returns the descriptions of plugins, in the same order; a broken one has a `problem`."""
    with session():
        return [Description(ref, **_ask({"ask": "describe", "ref": vars(ref)})) for ref in refs]


def resolve(ref: PluginRef, options: Mapping[str, Any]) -> Resolved:
    """Validates a plugin's options, fills in defaults and finds what identifies the plugin in a cell."""
    answer = _ask({"ask": "resolve", "ref": vars(ref), "options": options})
    if "problem" in answer:
        needs = answer.get("needs")
        message = f"plugin {ref.name} {'cannot be used' if needs else 'is broken'}: {answer['problem']}"
        hint = needs or f"repair or uninstall {ref.dist}; `fcilbench plugins show {ref.name}` says more"
        return Resolved(problems=(Problem(message, hint=hint),), prerequisite=True)
    problems = (Problem(**{**each, "path": tuple(each["path"])}) for each in answer.pop("problems", ()))
    return Resolved(**answer, problems=tuple(problems))


def _ask(question: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a question, from the cache if it is there and still valid."""
    with session() as (asker, environment):
        entry = _cache_entry(question, environment)
        answer = _cached(entry)
        if answer is None:
            answer = asker.ask(question)
            files = answer.pop("files", [])
            if not {"problem", "problems"} & answer.keys():
                _store(entry, answer, files)
        return answer


def _cache_entry(question: dict[str, Any], environment: str) -> Path:
    # Options may name files, which are looked for in these two folders.
    places = [os.environ.get("FCILBENCH_DATA"), os.getcwd()] if question.get("options") else []
    key = json.dumps([question, environment, places], sort_keys=True, default=str)
    return cache_root() / "registry-4" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _cached(entry: Path) -> dict[str, Any] | None:
    """Returns a stored answer if the files that it depends on are unchanged; `None` if not, or if it is damaged."""
    try:
        content = json.loads(entry.read_text())
        unchanged = all(_stamp(stamp[0]) == stamp for stamp in content["stamps"])
        return dict(content["answer"]) if unchanged else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _store(entry: Path, answer: dict[str, Any], files: Sequence[str]) -> None:
    with contextlib.suppress(OSError):  # of a cache that cannot be written, or a file that cannot be looked at
        content = {"stamps": [_stamp(path) for path in files], "answer": answer}
        write_atomic(entry, json.dumps(content), durable=False)


def _stamp(path: str) -> list[Any]:
    """Returns a path as given, absolute path, size in bytes and modification time in ns, -1 each if nothing is there.

    A place where a file was looked for in vain counts too: what is put there later gives another answer.
    """
    try:
        stat = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return [path, os.path.abspath(path), -1, -1]
    return [path, os.path.abspath(path), stat.st_size, stat.st_mtime_ns]


def environment_key() -> str:
    """Returns a digest of interpreter, search path, installed distributions and the source of this package.

    A plugin may import any package, so installing or upgrading one makes all cached answers invalid.
    """
    digest = hashlib.sha256(f"{fcilbench.__version__} {platform.python_version()} {sys.prefix}".encode())
    for entry in filter(None, sys.path):
        digest.update(f"\0{os.path.abspath(entry)}".encode())
        with contextlib.suppress(OSError), os.scandir(entry) as found:
            infos = [each for each in found if each.name.endswith((".dist-info", ".egg-info"))]
            digest.update(repr(sorted((each.name, each.stat().st_mtime_ns) for each in infos)).encode())
    for path in sorted(Path(fcilbench.__file__).parent.rglob("*.py")):
        stat = path.stat()
        digest.update(f"\0{path} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()
