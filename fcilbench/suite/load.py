"""Reads a suite: the files that it extends, its own file, `-s` overrides; every value keeps where it comes from.

Three layers and no second grammar: `extends` -> file -> `-s path=value`. The last one wins, maps merge, lists replace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from fcilbench.errors import KeyPath, Problem, UsageError
from fcilbench.files import neighbour
from fcilbench.registry.validation import explain, validate
from fcilbench.shipped import folder, located, named
from fcilbench.spec.cell import PLUGIN_KINDS
from fcilbench.spec.protocol import Partition
from fcilbench.suite.lock import has_study, rules_of, sealed
from fcilbench.suite.schema import Suite
from fcilbench.suite.yaml import MAX_BYTES, MAX_DEPTH, InvalidSuiteError, Node, merge, one_line, parse, place

VERSION = "fcilbench"
"""Key of the version of a suite's format."""
MAX_EXTENDS = 50
"""Longest chain of files that extend each other."""


@dataclass(frozen=True)
class LoadedSuite:
    """A valid suite, its file, and the values that it was made from, with their places."""

    suite: Suite
    path: Path
    tree: Node = field(repr=False)

    @property
    def origins(self) -> dict[str, str]:
        """The place of each value that the suite gives, by dotted path (`protocol.rounds`, `seeds`)."""
        found = {}
        for path, where in _leaves(self.tree):
            # `{dirichlet: 0.5}` is a short form of the whole partition.
            short = path[:2] == ("grid", "partition") and path[-1] in ("dirichlet", "quantity")
            found[".".join(map(str, path[:-1] if short else path))] = where
        return found

    @property
    def unsealed(self) -> list[str]:
        """The files whose rules cite a study, of which no digest of a lock file shows if they were edited by hand."""
        rules = [index for index, rule in enumerate(self.suite.tuned) if rule.sealed is False]
        places = (self.tree.find(("tuned", index)) for index in rules)
        return list(dict.fromkeys(re.sub(r":\d+:\d+$", "", place) for place in places))

    def inherited(self, path: KeyPath) -> bool:
        """Says whether a value comes from a file that the suite extends."""
        return not self.tree.find(path).startswith((f"{self.path}:", "-s "))


def _leaves(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yields path and place of every scalar and of every empty map or list."""
    if isinstance(node.value, dict | list) and node.value:
        for step, child in node.value.items() if isinstance(node.value, dict) else enumerate(node.value):
            yield from _leaves(child, (*path, step))
    else:
        yield path, node.where


def load_suite(path: Path | str, overrides: Sequence[str] = (), params: Path | None = None) -> LoadedSuite:
    """Loads and validates a suite.

    Overrides are `path=value` each; the value is YAML, and a path may hold list indices
    (`grid.backbone.0.weights=model.safetensors`). `params` is a lock file of `fcilbench tune`, whose rules come after
    those of the suite; no override reaches them.

    Raises:
        InvalidSuiteError: If a file cannot be read, or anything is wrong with the suite; one line for each problem.
        UsageError: If an override is not of the form `path=value`.
    """
    path = Path(path)
    tree = _read(path)
    for text in overrides:
        tree = override(tree, text)
    locked = rules_of(parse(_bytes(params, what="lock file"), str(params)), params) if params else []
    tree = _with_rules(tree, locked)
    try:
        suite = validate(Suite, tree.plain())
    except ValidationError as error:
        problems = [_as_written(tree, each) for each in explain(error, Suite)]
        raise InvalidSuiteError(place(tree, problems), ran=("parse", "schema")) from error
    return LoadedSuite(suite, path, tree)


def _as_written(tree: Node, problem: Problem) -> Problem:
    """Returns a problem with the keys of the file: `{dirichlet: 0.5}` has no `value`, and `seeds: 3` no `count`."""
    if problem.path == (VERSION,):
        return replace(problem, hint=_version_hint(tree.plain()))
    holder, above, last = tree.plain(), problem.path[:-1], problem.path[-1:]
    for step in above:
        holder = holder[step]
    if last == ("value",) and isinstance(holder, dict):
        last = tuple(key for key in Partition.short_forms if key in holder) or last
    path = (*above, *last) if isinstance(holder, dict | list) else above
    old, new = (".".join(map(str, each)) for each in (problem.path, path))
    return replace(problem, path=path, message=problem.message.replace(f"{old}: ", f"{new}: ", 1))


def _version_hint(suite: dict[str, object]) -> str:
    """Returns what to do about a suite whose version of the format is missing or another one."""
    given = suite.get(VERSION)
    if isinstance(given, int) and not isinstance(given, bool) and given > 1:
        return f"this fcilbench reads format 1: upgrade it for a suite of format {given}, else write `{VERSION}: 1`"
    return f"write `{VERSION}: 1`: the version of the file's format"


def _read(path: Path, where: str = "", chain: tuple[Path, ...] = ()) -> Node:
    """Reads a file and those that it extends; `where` is the place that names it, `chain` the files before it."""
    path = located(path, "suites", ".yaml")
    tree = parse(_bytes(path, where), str(path))
    if not isinstance(tree.value, dict):
        name = f"{path} is no suite: " if where else ""
        raise _invalid(f"{name}a suite is a map of keys", where or tree.where)
    extends = tree.value.get("extends")
    if extends is None or not isinstance(extends.value, str):
        return tree
    chain, base = (*chain, path.resolve()), _extended(path, extends.value)
    if "\0" not in extends.value and base.resolve() in chain:
        circle = " -> ".join(each.name for each in (*chain, base))
        raise _invalid(f"`extends` runs in a circle: {circle}", extends.where)
    if len(chain) > MAX_EXTENDS:
        first = " -> ".join(each.name for each in chain[:3])
        message = (
            f"`extends` leads through more than {MAX_EXTENDS} files: {first} -> ... -> {chain[-1].name} -> {base.name}"
        )
        raise _invalid(message, extends.where, "put what these files share into one file, and extend that one")
    return merge(_read(base, extends.where, chain), tree)


def _extended(path: Path, name: str) -> Path:
    """Returns the file that a suite at `path` extends: beside it or, where there is none, a shipped one."""
    base = path.parent / name
    try:
        return base if base.exists() else named(Path(name), "suites", ".yaml") or base
    except (OSError, ValueError):  # a path may be too long, or hold a NUL
        return base


def _with_rules(tree: Node, locked: list[Node]) -> Node:
    """Returns a suite with the rules of a lock file after its own; those of its own that cite a study are marked."""
    own = tree.value.get("tuned", Node([], tree.where, tree.key))
    if not isinstance(own.value, list) or not (own.value or locked):  # no list is refused by the schema
        return tree
    rules = [sealed(rule, False) if has_study(rule) and "sealed" not in rule.value else rule for rule in own.value]
    return replace(tree, value={**tree.value, "tuned": replace(own, value=[*rules, *locked])})


def _bytes(path: Path, where: str = "", what: str = "suite") -> bytes:
    try:
        if path.is_file():
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) <= MAX_BYTES:
                return data
            reason = f"is larger than {MAX_BYTES // 1000} kB"
        elif path.exists():
            reason = "is no file"
        else:
            near = neighbour(path, "*.y*ml")
            if what == "suite":
                near = near or neighbour(folder("suites") / f"{path.stem}.yaml", "*.yaml")
            reason = f"does not exist{near}"
    except (OSError, ValueError) as error:  # a path may be too long, or hold a NUL
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise _invalid(f"{what} {path} {reason}", where)


def override(tree: Node, text: str) -> Node:
    """Returns a suite, or the options of a plugin, with one `-s path=value`.

    Raises:
        UsageError: If it is not of this form.
        InvalidSuiteError: If the path leads through a value that has no such key or entry.
    """
    origin = one_line(f"-s {text}")
    path, equals, raw = text.partition("=")
    steps = path.split(".")
    if not equals or "" in steps or len(steps) > MAX_DEPTH:
        raise UsageError(f"{origin}: expected path=value", hint="for example -s protocol.rounds=1")
    try:
        value = parse(raw, origin, positions=False)
    except InvalidSuiteError as error:
        raise UsageError(f"{origin}: {error.problems[0].message}") from error
    try:
        return _put(tree, steps, value, ())
    except LookupError as error:
        raise _invalid(str(error.args[0]), origin) from None


def _put(old: Node, steps: Sequence[str], new: Node, done: KeyPath) -> Node:
    """Returns `old`, whose path is `done`, with `new` at the end of `steps`."""
    if not steps:
        return merge(old, new)
    value, name = _opened(old, done), ".".join(map(str, done))
    if isinstance(value, list):
        step = steps[0]
        if step not in map(str, range(len(value))):
            legal = f"0 to {len(value) - 1}" if value else "none, it is empty"
            raise LookupError(f"{name} has no entry {step!r} (its entries: {legal})")
        index = int(step)
        entry = _put(value[index], steps[1:], new, (*done, index))
        return replace(old, value=[*value[:index], entry, *value[index + 1 :]])
    if isinstance(value, dict):
        whole = ".".join(steps)  # the keys of rules may hold dots themselves
        key, rest = (whole, ()) if whole in value else (steps[0], steps[1:])
        child = value.get(key, Node({}, new.where, new.where))
        return replace(old, value={**value, key: _put(child, rest, new, (*done, key))})
    raise LookupError(f"{name} is {value!r}, it has no key {steps[0]!r}")


def _opened(node: Node, path: KeyPath) -> object:
    """Returns a value, or the map that a short form or an empty value stands for."""
    if node.value is None:
        return {}
    if isinstance(node.value, str) and len(path) == 3 and path[0] == "grid" and path[1] in PLUGIN_KINDS:
        return {"use": node}
    return {"count": node} if type(node.value) is int and path == ("seeds",) else node.value


def _invalid(message: str, where: str, hint: str | None = None) -> InvalidSuiteError:
    return InvalidSuiteError([Problem(one_line(message), hint=hint, check="parse", where=where)])
