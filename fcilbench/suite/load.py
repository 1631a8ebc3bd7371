"""Reads a suite: file, the files it extends, `-s` overrides; every value keeps where it comes from.

Three layers and no second grammar: `extends` -> file -> `-s path=value`. The last one wins, maps merge, lists replace.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from fcilbench.errors import SuiteError, UsageError, nearest
from fcilbench.registry.validation import validate
from fcilbench.suite.explain import condition_problems, schema_problems
from fcilbench.suite.parse import Node, parse, parse_value
from fcilbench.suite.problems import InvalidSuiteError, Problem
from fcilbench.suite.schema import PLUGIN_KINDS, Suite


@dataclass(frozen=True)
class LoadedSuite:
    """A suite whose structure is valid, and where each of its values comes from.

    Attributes:
        suite: The suite.
        path: Its file.
        tree: All values with their positions.
    """

    suite: Suite
    path: Path
    tree: Node = field(repr=False)

    @functools.cached_property
    def origins(self) -> dict[str, str]:
        """By dotted path (`protocol.rounds`, `grid.dataset.0.use`): `file:line:column` or `-s path=value`.

        A path that is missing has its default.
        """
        found = {}
        for path, node in self.tree.leaves():
            found[".".join(map(str, path))] = node.origin
            if path[:2] == ("grid", "partition") and path[-1] in ("dirichlet", "quantity"):
                # The short form of a partition stands for both fields of the long one.
                found |= {f"grid.partition.{path[2]}.{name}": node.origin for name in ("kind", "value")}
        return found


def load_suite(path: Path | str, overrides: Sequence[str] = ()) -> LoadedSuite:
    """Loads and validates a suite.

    Args:
        path: The suite's file.
        overrides: `path=value` each; the value is YAML, list indices are allowed
            (`grid.backbone.0.weights=model.safetensors`).

    Raises:
        InvalidSuiteError: If anything is wrong with it; one line per problem, with position and nearest legal word.
        UsageError: If an override is not of the form `path=value`.

    Example:
        >>> load_suite("suites/quickstart.yaml", ["seeds=1"]).suite.seeds.count  # doctest: +SKIP
        1
    """
    path = Path(path)
    tree, problems = read_tree(path, overrides)
    try:
        suite = validate(Suite, tree.plain())
    except ValidationError as error:
        problems += schema_problems(error, tree)
    problems += condition_problems(tree)
    if problems:
        # The registry is asked too, so that a misspelt plugin or parameter comes with the misspelt keys.
        from fcilbench.suite.entries import salvage

        raise InvalidSuiteError(in_order([*problems, *salvage(tree)]), ran=("parse", "schema"))
    return LoadedSuite(suite, path, tree)


def read_tree(path: Path, overrides: Sequence[str] = ()) -> tuple[Node, list[Problem]]:
    """Reads and merges the three layers without validating them.

    Raises:
        InvalidSuiteError: If a file is missing or is not YAML, or `extends` runs in a circle.
        UsageError: If an override is not of the form `path=value`.
    """
    tree, problems = _read(path, ())
    if not isinstance(tree.value, dict):
        raise InvalidSuiteError([*problems, Problem("a suite is a map of keys", tree.origin, check="parse")])
    for text in overrides:
        problems += _override(tree, text)
    return tree, problems


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Returns distinct problems in the order of their positions."""

    def position(problem: Problem) -> tuple[str, int, int]:
        match = re.fullmatch(r"(.*):(\d+):(\d+)", problem.where)
        return (match[1], int(match[2]), int(match[3])) if match else (problem.where, 0, 0)

    return sorted(dict.fromkeys(problems), key=position)


def merge(base: Node, top: Node) -> Node:
    """Returns `top` over `base`: maps merge, everything else is replaced."""
    if not (isinstance(base.value, dict) and isinstance(top.value, dict)):
        return top
    merged = dict(base.value)
    for key, child in top.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return Node(merged, top.origin, top.key_origin)


def _read(path: Path, chain: tuple[Path, ...], origin: str | None = None) -> tuple[Node, list[Problem]]:
    """Reads a file over the files that it extends; `chain` holds the files that led here."""
    tree, problems = parse(_text(path, origin), str(path))
    extends = tree.child("extends")
    if extends is None or not isinstance(extends.value, str):
        return tree, problems
    base_path = path.parent / extends.value
    chain = (*chain, path.resolve())
    if base_path.resolve() in chain:
        circle = " -> ".join(each.name for each in (*chain, base_path))
        raise InvalidSuiteError([*problems, Problem(f"`extends` runs in a circle: {circle}", extends.origin)])
    base, base_problems = _read(base_path, chain, extends.origin)
    if isinstance(base.value, dict):
        base.value.pop("extends", None)
    return merge(base, tree), [*base_problems, *problems]


def _text(path: Path, origin: str | None) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SuiteError(f"{path} is not UTF-8 text", where=origin or str(path)) from error
    except OSError as error:
        siblings = [each.name for each in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        reason = "is a folder" if path.is_dir() else "cannot be read" if path.exists() else "does not exist"
        near = nearest(path.name, siblings) if reason == "does not exist" else ""
        raise SuiteError(f"suite {path} {reason}{near}", where=origin) from error


def _override(root: Node, text: str) -> list[Problem]:
    """Sets one value; returns what is wrong with its path."""
    path, equals, raw = text.partition("=")
    origin = f"-s {text}"
    if not equals or not path or "" in path.split("."):
        raise UsageError(f"{origin}: expected path=value", hint="for example -s protocol.rounds=1")
    try:
        value = _with_origin(parse_value(raw), origin)
    except InvalidSuiteError as error:
        raise UsageError(f"{origin}: {error.problems[0].message}") from error
    node, steps = root, path.split(".")
    done: list[str] = []
    while steps:
        step = steps.pop(0)
        if isinstance(node.value, list):
            if not step.isdecimal() or int(step) >= len(node.value):
                legal = f"0 to {len(node.value) - 1}" if node.value else "none, it is empty"
                return [Problem(f"{'.'.join(done)} has no entry {step!r} (its entries: {legal})", origin)]
            child, index = node.value[int(step)], int(step)
            if not steps:
                node.value[index] = merge(child, value)
        elif isinstance(node.value, dict):
            whole = ".".join([step, *steps])  # the keys of rules may hold dots themselves
            if whole in node.value:
                step, steps = whole, []
            child = node.value.get(step) or Node({}, origin, origin)
            node.value[step] = child if steps else merge(child, value) if step in node.value else value
        else:
            return [Problem(f"{'.'.join(done)} is {node.value!r}, it has no key {step!r}", origin)]
        done.append(step)
        if steps:
            _open_up(child, done)
        node = child
    return []


def _open_up(node: Node, path: Sequence[str]) -> None:
    """Turns a short form, or an empty value, into the map that it stands for, so that a path can go on below it."""
    if node.value is None:
        node.value = {}
    elif isinstance(node.value, str) and len(path) == 3 and path[0] == "grid" and path[1] in PLUGIN_KINDS:
        node.value = {"use": Node(node.value, node.origin)}
    elif type(node.value) is int and list(path) == ["seeds"]:
        node.value = {"count": Node(node.value, node.origin)}


def _with_origin(value: object, origin: str) -> Node:
    if isinstance(value, dict):
        return Node({key: _with_origin(child, origin) for key, child in value.items()}, origin, origin)
    if isinstance(value, list):
        return Node([_with_origin(child, origin) for child in value], origin, origin)
    return Node(value, origin, origin)
