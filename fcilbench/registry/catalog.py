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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fcilbench
from fcilbench.files import write_atomic
from fcilbench.registry.entrypoints import PluginRef
from fcilbench.registry.process import Asker

CACHE = "FCILBENCH_CACHE"
"""Environment variable: folder of the cache; unset means the user's cache folder."""

_ANSWERING = ("spec", "api", "registry", "data")
"""Rooms whose code makes a plugin's answers, beside the plugin's own."""


@dataclass(frozen=True)
class FieldDescription:
    """One hyperparameter of a plugin.

    Attributes:
        name: Its key in a suite.
        type: Its type, as the author wrote it, e.g. `float` or `int | None`.
        required: Whether it has no default.
        default: Default value, JSON-compatible.
        description: What it means.
        source: Where the default comes from.
        space: Search space for tuning (`low`, `high`, `log`, `choices`), or `None`.
    """

    name: str
    type: str
    required: bool = False
    default: Any = None
    description: str = ""
    source: str | None = None
    space: dict[str, Any] | None = None


@dataclass(frozen=True)
class Description:
    """One plugin as `plugins show` prints it.

    Attributes:
        ref: Where it is.
        version: The plugin's declared version.
        summary: First line of its docstring.
        fields: Its hyperparameters, in the author's order.
        schema: JSON Schema of its `Params`.
        facts: What its class declares: counts, default tasks, licence.
        origin: `file:line` of the class.
        import_ms: Milliseconds its import took, that of torch not counted.
        code_digest: Digest of its normalised source (`fcilbench.registry.digest`).
        problem: Why it is broken, or `None`.
    """

    ref: PluginRef
    version: str = ""
    summary: str = ""
    fields: tuple[FieldDescription, ...] = ()
    schema: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    import_ms: float = 0.0
    code_digest: str = ""
    problem: str | None = None

    @property
    def field_names(self) -> tuple[str, ...]:
        """Legal keys of the plugin in a suite."""
        return tuple(each.name for each in self.fields)


@dataclass(frozen=True)
class Use:
    """A plugin with the options that a suite gives it: JSON-compatible values by parameter."""

    ref: PluginRef
    options: dict[str, Any] = field(default_factory=dict)


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
        use: What was asked.
        version: The plugin's declared version.
        params: Every parameter, defaults filled in.
        identity: What of the parameters identifies a cell.
        facts: What the class declares.
        code_digest: Digest of its normalised source.
    """

    use: Use
    version: str
    params: dict[str, Any]
    identity: dict[str, Any]
    facts: dict[str, Any]
    code_digest: str


@dataclass(frozen=True)
class Unresolved:
    """A plugin that cannot be used with these options.

    Attributes:
        use: What was asked.
        problems: Why.
        prerequisite: Whether something is missing on this machine (a weight file, a package), so that the suite
            itself may be right.
    """

    use: Use
    problems: tuple[Problem, ...]
    prerequisite: bool = False


_open: list[Asker] = []


@contextlib.contextmanager
def session() -> Iterator[Asker]:
    """Keeps one worker process for all questions within the block; importing plugins costs it seconds.

    The process starts with the first question that the cache cannot answer.
    """
    if _open:
        yield _open[-1]
        return
    with Asker() as asker:
        _open.append(asker)
        try:
            yield asker
        finally:
            _open.remove(asker)


def describe(refs: Sequence[PluginRef]) -> list[Description]:
    """Describes plugins, in the same order; a broken one has a `problem` and hurts no other."""
    answers = _ask([{"ask": "describe", "ref": vars(ref)} for ref in refs])
    return [_description(ref, answer) for ref, answer in zip(refs, answers, strict=True)]


def resolve(uses: Sequence[Use]) -> list[Resolved | Unresolved]:
    """Validates options, fills in defaults and finds what identifies a plugin in a cell; one result a use, in order."""
    answers = _ask([{"ask": "resolve", "ref": vars(use.ref), "options": use.options} for use in uses])
    return [_resolution(use, answer) for use, answer in zip(uses, answers, strict=True)]


def _ask(questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    cache = _Cache()
    keys = [json.dumps(question, sort_keys=True, default=str) for question in questions]
    distinct = dict(zip(keys, questions, strict=True))
    known = {key: cache.get(question) for key, question in distinct.items()}
    if None in known.values():
        with session() as asker:
            for key in [key for key, answer in known.items() if answer is None]:
                known[key] = answer = asker.ask(distinct[key])
                if not {"problem", "problems", "died"} & answer.keys():
                    cache.put(distinct[key], answer, [*answer["sources"], *answer.get("files", [])])
    return [known[key] or {} for key in keys]


def _description(ref: PluginRef, answer: dict[str, Any]) -> Description:
    problem = answer.get("problem") or answer.get("died")
    if problem is not None:
        return Description(ref, problem=problem)
    names = ("version", "summary", "schema", "facts", "origin", "import_ms", "code_digest")
    fields = tuple(FieldDescription(**each) for each in answer.get("fields", []))
    return Description(ref, fields=fields, **{name: answer[name] for name in names if name in answer})


def _resolution(use: Use, answer: dict[str, Any]) -> Resolved | Unresolved:
    if "died" in answer:
        message = f"plugin {use.ref.name} is broken: {answer['died']}"
        return Unresolved(use, (Problem((), message),), prerequisite=True)
    if "problems" in answer:
        problems = (Problem(tuple(each["loc"]), each["message"], each["hint"]) for each in answer["problems"])
        return Unresolved(use, tuple(problems), answer["prerequisite"])
    fields = ("version", "params", "identity", "facts", "code_digest")
    return Resolved(use, **{name: answer[name] for name in fields})


def cache_root() -> Path:
    """Returns the folder of the cache; it need not exist."""
    override = os.environ.get(CACHE)
    if override:
        return Path(override)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fcilbench"))


class _Cache:
    """Answers on disk; made anew for each batch of questions, so that each file is looked at once.

    An entry is found by its question and the installed packages. It holds if the plugin's sources and the files that
    its identity depends on have the size and the time that they had. A corrupt or unreadable entry does not hold, and
    a cache that cannot be written is done without.
    """

    def __init__(self) -> None:
        self._folder = cache_root() / "registry-2"
        self._environment = environment_key()
        self._stamps: dict[str, list[Any] | None] = {}
        self._origins: dict[str, str] = {}

    def get(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the answer to a question if it still holds."""
        try:
            entry = json.loads(self._path(question).read_text())
            stamps, answer = entry["stamps"], entry["answer"]
            if all(self._stamp(stamp[0]) == stamp for stamp in stamps) and isinstance(answer, dict):
                return answer
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            pass
        return None

    def put(self, question: dict[str, Any], answer: dict[str, Any], files: Iterable[str]) -> None:
        """Stores an answer with the state of the files that it depends on; if one of them is gone, nothing."""
        stamps = [self._stamp(path) for path in files]
        if None not in stamps:
            with contextlib.suppress(OSError):
                content = json.dumps({"stamps": stamps, "answer": answer})
                write_atomic(self._path(question), content, durable=False)

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

    def _stamp(self, path: str) -> list[Any] | None:
        """Returns a file as it is now: path as given, absolute path, size in bytes, modification time in ns."""
        if path not in self._stamps:
            try:
                stat = os.stat(path)
                self._stamps[path] = [path, os.path.abspath(path), stat.st_size, stat.st_mtime_ns]
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
