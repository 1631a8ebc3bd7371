"""Descriptions and resolutions of plugins, answered by a worker process and cached by the state of their files.

Nothing here imports a plugin. A warm cache starts no process. What failed is never cached: the reason may be outside
everything that a cache can see (a missing library, a file, a variable), so it is tried again each time.
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
from fcilbench.files import write_atomic
from fcilbench.registry.entrypoints import PluginRef
from fcilbench.registry.process import Asker

CACHE = "FCILBENCH_CACHE"
"""Environment variable: folder of the cache; unset means the user's cache folder."""


@dataclass(frozen=True)
class Description:
    """One plugin as `plugins show` prints it.

    Attributes:
        summary: First line of its docstring.
        schema: JSON Schema of its `Params`.
        facts: What its class declares: counts, default tasks, licence.
        origin: `file:line` of the class.
        code_digest: Digest of its normalised source (`fcilbench.registry.digest`).
        problem: Why it is broken, or `None`.
    """

    ref: PluginRef
    version: str = ""
    summary: str = ""
    schema: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    code_digest: str = ""
    problem: str | None = None

    @property
    def field_names(self) -> tuple[str, ...]:
        """Legal keys of the plugin in a suite."""
        return tuple(self.schema.get("properties", ()))


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the options of a plugin.

    Attributes:
        loc: Path to the value within the options; empty if the options as a whole are wrong.
        message: What is wrong, with the nearest legal word where there is one.
        hint: What to do about it.
    """

    loc: tuple[str | int, ...]
    message: str
    hint: str | None = None


@dataclass(frozen=True)
class Resolved:
    """A plugin whose options are valid.

    Attributes:
        params: Every parameter, defaults filled in.
        identity: What of the parameters identifies a cell.
        facts: What the class declares.
    """

    version: str
    params: dict[str, Any]
    identity: dict[str, Any]
    facts: dict[str, Any]
    code_digest: str


@dataclass(frozen=True)
class Unresolved:
    """A plugin that cannot be used with these options.

    Attributes:
        problems: Why.
        prerequisite: Whether something is missing on this machine (a weight file, a package), so that the suite
            itself may be right.
    """

    problems: tuple[Problem, ...]
    prerequisite: bool = False


_open: list[tuple[Asker, str]] = []


@contextlib.contextmanager
def session() -> Iterator[tuple[Asker, str]]:
    """Keeps one worker process, and the digest of its environment, for all questions within the block.

    The process starts with the first question that the cache cannot answer; importing plugins costs it seconds.
    """
    if _open:
        yield _open[0]
        return
    with Asker() as asker:
        _open.append((asker, environment_key()))
        try:
            yield _open[0]
        finally:
            _open.clear()


def describe(refs: Sequence[PluginRef]) -> list[Description]:
    """Describes plugins, in the same order; a broken one has a `problem` and hurts no other."""
    with session():
        return [Description(ref, **_ask({"ask": "describe", "ref": vars(ref)})) for ref in refs]


def resolve(ref: PluginRef, options: Mapping[str, Any]) -> Resolved | Unresolved:
    """Validates a plugin's options, fills in defaults and finds what identifies the plugin in a cell."""
    answer = _ask({"ask": "resolve", "ref": vars(ref), "options": options})
    if "problem" in answer:
        message = f"plugin {ref.name} is broken: {answer['problem']}"
        hint = f"repair or uninstall {ref.dist}; `fcilbench plugins show {ref.name}` says more"
        return Unresolved((Problem((), message, hint),), prerequisite=True)
    if "problems" in answer:
        problems = (Problem(tuple(each["loc"]), each["message"], each["hint"]) for each in answer["problems"])
        return Unresolved(tuple(problems), answer["prerequisite"])
    return Resolved(**answer)


def _ask(question: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a question, from the cache if it holds."""
    with session() as (asker, environment):
        entry = _cache_entry(question, environment)
        answer = _cached(entry)
        if answer is None:
            answer = asker.ask(question)
            files = answer.pop("files", [])
            if not {"problem", "problems"} & answer.keys():
                _store(entry, answer, files)
        return answer


def cache_root() -> Path:
    """Returns the folder of the cache; it need not exist."""
    override = os.environ.get(CACHE)
    if override:
        return Path(override)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fcilbench"))


def _cache_entry(question: dict[str, Any], environment: str) -> Path:
    # Options may name files, which are looked up from these two.
    places = [os.environ.get("FCILBENCH_DATA"), os.getcwd()] if question.get("options") else []
    key = json.dumps([question, environment, places], sort_keys=True, default=str)
    return cache_root() / "registry-4" / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _cached(entry: Path) -> dict[str, Any] | None:
    """Returns a stored answer if the files it depends on are as they were; a damaged entry does not hold."""
    try:
        content = json.loads(entry.read_text())
        holds = all(_stamp(stamp[0]) == stamp for stamp in content["stamps"])
        return dict(content["answer"]) if holds else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _store(entry: Path, answer: dict[str, Any], files: Sequence[str]) -> None:
    # A cache that cannot be written, or a file that is gone, means no entry.
    with contextlib.suppress(OSError):
        content = {"stamps": [_stamp(path) for path in files], "answer": answer}
        write_atomic(entry, json.dumps(content), durable=False)


def _stamp(path: str) -> list[Any]:
    """Returns a file as it is now: path as given, absolute path, size in bytes, modification time in ns."""
    stat = os.stat(path)
    return [path, os.path.abspath(path), stat.st_size, stat.st_mtime_ns]


def environment_key() -> str:
    """Returns a digest of interpreter, search path, installed distributions and the source of this package.

    A plugin's answer can depend on any package that it imports: installing or upgrading one asks every plugin again.
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
