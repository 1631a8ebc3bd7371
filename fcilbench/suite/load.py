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

from fcilbench.errors import SuiteError, nearest
from fcilbench.registry.validation import validate
from fcilbench.suite.explain import condition_problems, schema_problems
from fcilbench.suite.layers import merge, override
from fcilbench.suite.parse import Node, parse
from fcilbench.suite.parse import Path as Steps
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

        Short forms count as the long form that they stand for (`seeds: 3` is `seeds.count`). A path that is missing has
        its default.
        """
        return {".".join(map(str, full)): node.origin for path, node in self.tree.leaves() for full in _long_form(path)}


def _long_form(path: Steps) -> list[Steps]:
    """Returns the paths in the schema that a path in the file stands for."""
    if path == ("seeds",):
        return [("seeds", "count")]
    if len(path) == 3 and path[0] == "grid" and path[1] in PLUGIN_KINDS:
        return [(*path, "use")]
    if path[:2] == ("grid", "partition") and len(path) == 3:
        return [(*path, "kind")]
    if path[:2] == ("grid", "partition") and path[-1] in ("dirichlet", "quantity"):
        return [(*path[:-1], "kind"), (*path[:-1], "value")]
    return [path]


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
        problems += override(tree, text)
    return tree, problems


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Returns distinct problems in the order of their positions."""

    def position(problem: Problem) -> tuple[str, int, int]:
        match = re.fullmatch(r"(.*):(\d+):(\d+)", problem.where)
        return (match[1], int(match[2]), int(match[3])) if match else (problem.where, 0, 0)

    return sorted(dict.fromkeys(problems), key=position)


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
