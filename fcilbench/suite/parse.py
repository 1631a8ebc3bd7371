"""YAML 1.2 to a tree in which every value knows where it stands."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fcilbench.suite.problems import InvalidSuiteError, Problem

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node as YamlNode

Path = tuple[str | int, ...]
"""Keys and indices from the root of a suite to one of its values."""

_TAG = "tag:yaml.org,2002:"


@dataclass
class Node:
    """A value with its position.

    Attributes:
        value: A scalar, or the nodes of a map or of a list.
        origin: Where the value stands, `file:line:column` or `-s path=value`.
        key_origin: Where its key stands, if it is in a map.
    """

    value: Any
    origin: str
    key_origin: str | None = None

    def plain(self) -> Any:
        """Returns the value without positions, as JSON would hold it."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def child(self, step: str | int) -> Node | None:
        """Returns the value under a key or an index, `None` if there is none."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and 0 <= step < len(self.value):
            found: Node = self.value[step]
            return found
        return None

    def leaves(self, path: Path = ()) -> Iterator[tuple[Path, Node]]:
        """Yields every scalar and every empty map or list with its path."""
        if isinstance(self.value, dict | list) and self.value:
            pairs = self.value.items() if isinstance(self.value, dict) else enumerate(self.value)
            for step, child in pairs:
                yield from child.leaves((*path, step))
        else:
            yield path, self


def locate(root: Node, path: Sequence[str | int], *, key: bool = False) -> str:
    """Returns the position of a value, or of the nearest value that holds it.

    Args:
        root: The tree.
        path: Path of the value; it need not exist.
        key: Point at the value's key instead.
    """
    node = root
    for step in path:
        child = node.child(step)
        if child is None:
            holds = isinstance(node.value, dict | list)
            return (node.key_origin if holds else None) or node.origin
        node = child
    return node.key_origin or node.origin if key else node.origin


def parse(text: str, name: str) -> tuple[Node, list[Problem]]:
    """Parses one YAML document.

    Args:
        text: The document.
        name: Name of its file, for positions.

    Returns:
        The tree, and the problems that do not keep it from being built: duplicate keys and the like.

    Raises:
        InvalidSuiteError: If it is not YAML.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        root = YAML(typ="safe", pure=True).compose(io.StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.problem, error.context) if part)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise InvalidSuiteError([Problem(f"not valid YAML: {what}", where, check="parse")]) from error
    except YAMLError as error:
        raise InvalidSuiteError([Problem(f"not valid YAML: {error}", name, check="parse")]) from error
    builder = _Builder(name)
    tree = Node(None, f"{name}:1:1") if root is None else builder.build(root)
    return tree, builder.problems


def parse_value(text: str) -> Any:
    """Parses the value of a `-s path=value` override.

    Raises:
        InvalidSuiteError: If it is not YAML.
    """
    tree, problems = parse(text, "value")
    if problems:
        raise InvalidSuiteError(problems)
    return tree.plain()


class _Builder:
    def __init__(self, name: str) -> None:
        self._name = name
        self._open: set[int] = set()
        self.problems: list[Problem] = []

    def build(self, node: YamlNode) -> Node:
        where = self._where(node)
        if id(node) in self._open:
            self._report("an alias cannot stand inside its own anchor", where)
            return Node(None, where)
        self._open.add(id(node))
        try:
            return Node(self._value(node, where), where)
        finally:
            self._open.discard(id(node))

    def _value(self, node: YamlNode, where: str) -> Any:
        kind = str(node.tag).removeprefix(_TAG)
        if isinstance(node.value, list) and kind == "map":
            return self._map(node)
        if isinstance(node.value, list) and kind == "seq":
            return [self.build(child) for child in node.value]
        if kind in ("null", "bool", "int", "float", "str", "timestamp"):
            # A date is text here: YAML 1.2's core schema has none.
            try:
                return _scalar(kind, node.value)
            except ValueError:
                self._report(f"{node.value!r} is not a number", where)
                return None
        self._report(f"unknown tag {node.tag}", where)
        return None

    def _map(self, node: YamlNode) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key_node, value_node in node.value:
            where = self._where(key_node)
            key, kind = key_node.value, str(key_node.tag).removeprefix(_TAG)
            if kind == "merge":
                self._report("merge keys `<<` are not part of YAML 1.2", where, "use `extends`, or write the keys out")
            elif kind != "str":
                self._report(f"a key must be a word, not {key if isinstance(key, str) else 'a collection'}", where)
            elif key in found:
                self._report(f"duplicate key {key!r}, first at {found[key].key_origin}", where)
            else:
                child = self.build(value_node)
                found[key] = Node(child.value, child.origin, where)
        return found

    def _where(self, node: YamlNode) -> str:
        return f"{self._name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def _report(self, message: str, where: str, hint: str | None = None) -> None:
        self.problems.append(Problem(message, where, hint, check="parse"))


def _scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        digits = text.replace("_", "").lower()
        base = next((base for prefix, base in (("0x", 16), ("0o", 8), ("0b", 2)) if prefix in digits), 10)
        return int(digits, base)
    if kind == "float":
        return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
