"""YAML 1.2 to values that know their place, `file:line:column`, so that every problem can be shown where it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.nodes import Node as RawNode

from fcilbench.errors import KeyPath, Problem, SuiteError
from fcilbench.escape import line

MAX_BYTES = 250_000
"""Largest suite file."""
MAX_VALUES = 20_000
"""Most values of one file; each use of an alias counts all values of its anchor."""
MAX_DEPTH = 40
"""Deepest nesting of values."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = ("null", "bool", "int", "float", "str", "timestamp")
_LONGEST_LINE, _MOST_LINES = 600, 100


class InvalidSuiteError(SuiteError):
    """A suite is invalid: one line for each problem, in the order of their places.

    Args:
        ran: Ids of the checks that ran to their end.
    """

    def __init__(self, problems: Iterable[Problem], ran: Iterable[str] = ()) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=_position))
        self.ran = frozenset(ran)
        hint = "; ".join(dict.fromkeys(each.hint for each in self.problems if each.hint)) or None
        super().__init__("\n".join(self.lines), hint=hint)

    @property
    def lines(self) -> list[str]:
        """A line for each of the first problems."""
        more = len(self.problems) - _MOST_LINES
        return [*map(str, self.problems[:_MOST_LINES]), *([f"and {more:,} more"] if more > 0 else [])]


def _position(problem: Problem) -> tuple[str, int, int]:
    match = re.fullmatch(r"(.*):(\d+):(\d+)", problem.where)
    return (match[1], int(match[2]), int(match[3])) if match else (problem.where, 0, 0)


def one_line(text: str) -> str:
    """Returns a text as one short line that cannot steer a terminal."""
    text = line(text)
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE // 2]} ... {text[-_LONGEST_LINE // 3 :]}"


@dataclass(frozen=True)
class Node:
    """A value of a suite and its place.

    Attributes:
        value: A scalar, or the nodes of a map or a list.
        where: Place of the value: `file:line:column`, or the `-s path=value` that gave it.
        key: Place of its key; in a list that of the value.
    """

    value: Any
    where: str
    key: str

    def plain(self) -> Any:
        """Returns the value without places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        return [child.plain() for child in self.value] if isinstance(self.value, list) else self.value

    def find(self, path: KeyPath, *, key: bool = False) -> str:
        """Returns the place of the value (or of the key) at a path; if it is missing, of the nearest one above it."""
        node = self
        for step in path:
            children = dict(enumerate(node.value)) if isinstance(node.value, list) else node.value
            if not isinstance(children, dict):
                return node.where
            if step not in children:
                return node.key
            node = children[step]
        return node.key if key else node.where


def merge(base: Node, top: Node) -> Node:
    """Returns `top` over `base`: maps merge, everything else is replaced."""
    if not (isinstance(base.value, dict) and isinstance(top.value, dict)):
        return top
    merged = {key: merge(base.value[key], child) if key in base.value else child for key, child in top.value.items()}
    return replace(top, value={**base.value, **merged})


def place(tree: Node, problems: Iterable[Problem]) -> list[Problem]:
    """Returns the problems of a suite with their places, each as one short line."""
    return [
        replace(each, message=one_line(each.message), where=one_line(tree.find(each.path, key=each.key)))
        for each in dict.fromkeys(problems)
    ]


def parse(data: bytes | str, name: str, *, positions: bool = True) -> Node:
    """Parses one YAML document.

    `name` is that of its file, or the override that it is the value of; without `positions` places are this name alone.

    Raises:
        InvalidSuiteError: If it is not YAML, or more than a suite may hold.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False

    hint = None

    def where(mark: Any) -> str:
        return f"{name}:{mark.line + 1}:{mark.column + 1}" if positions and mark else name

    try:
        root = yaml.compose(data if isinstance(data, str) else data.decode())
        if root is None:
            return Node(None, *[f"{name}:1:1" if positions else name] * 2)
        return _Builder(yaml.constructor.construct_object, where).build(root)
    except MarkedYAMLError as error:
        message, place_ = str(error.problem or error.context), where(error.problem_mark or error.context_mark)
        if message == "could not find expected ':'" and error.context_mark:  # noticed one or more lines later
            message, place_ = "expected `key: value`", where(error.context_mark)
        elif "'\\t'" in message:
            message = "a tab stands here; YAML indents with spaces only"
        message, hint = _in_words(message, error)
        if not isinstance(error, _RefusedError):
            message = f"not valid YAML: {message}"
    except RecursionError:
        message, place_ = f"nested deeper than {MAX_DEPTH} levels", f"{name}:1:1"
    except (YAMLError, ValueError, ArithmeticError) as error:  # no text, or a strange escape sequence or directive
        message, place_ = f"not valid YAML: {error}", f"{name}:1:1"
    raise InvalidSuiteError([Problem(one_line(message), hint=hint, check="parse", where=one_line(place_))])


def _in_words(message: str, error: MarkedYAMLError) -> tuple[str, str | None]:
    """Returns what the parser says of wrong indents and open brackets in plain words, and what to do."""
    start = error.context_mark
    since = f" that begins in line {start.line + 1}" if start else ""
    if message.startswith("expected <block end>") or message.startswith("expected '<document start>'"):
        hint = "indent the keys of one map, and the dashes of one list, by the same number of spaces"
        return f"this line is not indented like the others of the block{since}", hint
    if message == "mapping values are not allowed here":
        hint = "indent it like the line above, or put quotes around a value that holds `: `"
        return "a key is not expected here: the line is indented too far, or has two colons", hint
    if found := re.match("expected ',' or '(.)'", message):
        return f"the list or map{since} is not closed: `{found[1]}` or a comma is missing", None
    if message == "found unexpected end of stream":
        return f"the text in quotes{since} is not closed", None
    return message, None


class _RefusedError(MarkedYAMLError):
    """Valid YAML that a suite may not hold."""


class _Builder:
    """Builds our nodes from those of the parser; refuses endless aliases, unknown tags and keys that are no words."""

    def __init__(self, construct: Callable[[RawNode], Any], where: Callable[[Any], str]) -> None:
        self._construct, self._where, self._count = construct, where, 0

    def build(self, raw: RawNode, key: RawNode | None = None, depth: int = 1) -> Node:
        self._count += 1
        if self._count > MAX_VALUES:
            _refuse(f"more than {MAX_VALUES:,} values", raw)
        if depth > MAX_DEPTH:
            _refuse(f"nested deeper than {MAX_DEPTH} levels", raw)
        value: Any
        if isinstance(raw, ScalarNode):
            value = self._scalar(raw)
        elif raw.tag != _TAG + ("map" if isinstance(raw, MappingNode) else "seq"):
            _refuse(f"unknown tag {raw.tag}", raw)
        elif isinstance(raw, SequenceNode):
            value = [self.build(child, None, depth + 1) for child in raw.value]
        else:
            value = {}
            for name, child in raw.value:
                if name.tag != f"{_TAG}str":
                    shown = repr(name.value) if isinstance(name, ScalarNode) else "a collection"
                    _refuse(f"a key must be a word, not {shown}", name)
                if self._scalar(name) in value:
                    _refuse(f"duplicate key {name.value!r}", name)
                value[name.value] = self.build(child, name, depth + 1)
        return Node(value, self._where(raw.start_mark), self._where((key or raw).start_mark))

    def _scalar(self, raw: ScalarNode) -> Any:
        kind = str(raw.tag).removeprefix(_TAG)
        if kind not in _SCALARS:
            _refuse(f"unknown tag {raw.tag}", raw)
        if kind == "timestamp":  # YAML 1.2 has no dates
            raw.tag = f"{_TAG}str"
        try:
            value = self._construct(raw)
            raw.value.encode()
        except UnicodeEncodeError:
            _refuse("the text has half a character (a lone surrogate)", raw)
        except (ValueError, LookupError, YAMLError):
            _refuse(f"{raw.value!r} is not a valid {kind}", raw)
        if isinstance(value, int) and abs(value) >= 2**63:
            _refuse(f"{raw.value!r} is too large", raw)
        return value


def _refuse(message: str, raw: RawNode) -> NoReturn:
    raise _RefusedError(problem=message, problem_mark=raw.start_mark)
