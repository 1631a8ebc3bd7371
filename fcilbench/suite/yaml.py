"""YAML 1.2 to plain values, and back from a path within them to `file:line:column`.

Checkers say which value of a suite is wrong (`Finding`); its place in the files is found once, at the end (`place`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fcilbench.errors import SuiteError

MAX_BYTES = 250_000
"""Largest suite file."""
MAX_VALUES = 20_000
"""Most values of one file; each use of an alias counts all values of its anchor."""
MAX_DEPTH = 40
"""Deepest nesting of values."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = ("null", "bool", "int", "float", "str", "timestamp")
_LONGEST_LINE, _MOST_LINES = 600, 100

KeyPath = tuple[str | int, ...]
"""Keys and indices from the root of a suite to one of its values."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a value of a suite.

    Attributes:
        message: What, with the nearest legal word where there is one.
        path: The value's path in the suite; the value may be missing.
        key: Whether the value's key is wrong.
        hint: What to do about it.
        check: Id of the check that found it (see `fcilbench.suite.check`).
    """

    message: str
    path: KeyPath
    key: bool = False
    hint: str | None = None
    check: str = "schema"


@dataclass(frozen=True)
class Problem:
    """A finding with its place, `file:line:column` or the `-s` override that it comes from; each in one short line."""

    message: str
    where: str
    hint: str | None = None
    check: str = "schema"

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", one_line(self.message))
        object.__setattr__(self, "where", one_line(self.where))

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class InvalidSuiteError(SuiteError):
    """A suite is invalid: one line for each problem, in the order of their places.

    Args:
        problems: At least one.
        ran: Ids of the checks that ran to their end.
    """

    def __init__(self, problems: Iterable[Problem], ran: Iterable[str] = ()) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=_position))
        self.ran = frozenset(ran)
        hint = "; ".join(dict.fromkeys(each.hint for each in self.problems if each.hint)) or None
        if len(self.problems) == 1:
            super().__init__(self.problems[0].message, where=self.problems[0].where, hint=hint)
            return
        lines = [str(each) for each in self.problems[:_MOST_LINES]]
        if len(self.problems) > _MOST_LINES:
            lines.append(f"and {len(self.problems) - _MOST_LINES:,} more")
        super().__init__("\n".join(lines), hint=hint)


def _position(problem: Problem) -> tuple[str, int, int]:
    match = re.fullmatch(r"(.*):(\d+):(\d+)", problem.where)
    return (match[1], int(match[2]), int(match[3])) if match else (problem.where, 0, 0)


def one_line(text: str) -> str:
    """Returns a text as one short line: unprintable characters are escaped, a long middle is left out."""
    if len(text) > _LONGEST_LINE:
        text = f"{text[: _LONGEST_LINE // 2]} ... {text[-_LONGEST_LINE // 3 :]}"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


@dataclass(frozen=True)
class Layer:
    """The values that one file or one `-s path=value` gives to a suite.

    Attributes:
        name: Name of the file, or the whole `-s path=value`.
        value: The values.
        root: The same as nodes, which know their positions; `None` if the document is empty.
        at: Path in the suite at which an override puts its value; `None` for a file.
    """

    name: str
    value: Any
    root: Node | None
    at: KeyPath | None = None

    def find(self, path: KeyPath, *, key: bool = False) -> tuple[int, str, bool]:
        """Returns how many steps of a path are here, the place of the last one, and whether lower layers are hidden.

        A list or a scalar on the way hides what lower layers have there. `key` asks for the place of the value's key.
        """
        at = self.at or ()
        if path[: len(at)] != at:
            return -1, self.name, False
        node, key_node, steps, in_list = self.root, None, len(at), False
        while steps < len(path) and (child := _child(node, path[steps])):
            in_list = in_list or isinstance(node, SequenceNode)
            (key_node, node), steps = child, steps + 1
        missing = steps < len(path)
        at_key = key or (missing and not isinstance(node, ScalarNode))
        shown = key_node if key_node is not None and at_key else node
        where = self.name if self.at is not None or shown is None else _where(self.name, shown.start_mark)
        return steps, where, in_list or not missing or not isinstance(node, MappingNode)


def _child(node: Node | None, step: str | int) -> tuple[Node | None, Node] | None:
    """Returns the nodes of key and value under a key or an index."""
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        return None, node.value[step]
    return None


def locate(layers: Sequence[Layer], path: KeyPath, *, key: bool = False) -> tuple[Layer, str]:
    """Returns the layer and the place of a value (or of its key), or of the nearest value that holds it.

    The layers go from the lowest to the one that wins; the value need not exist.
    """
    best, deepest = (layers[-1], layers[-1].name), -1
    for layer in reversed(layers):
        steps, where, hides = layer.find(path, key=key)
        if steps > deepest:
            best, deepest = (layer, where), steps
        if hides:
            break
    return best


def place(layers: Sequence[Layer], findings: Iterable[Finding]) -> list[Problem]:
    """Returns findings with their places."""
    return [
        Problem(each.message, locate(layers, each.path, key=each.key)[1], each.hint, each.check)
        for each in dict.fromkeys(findings)
    ]


def parse(data: bytes | str, name: str) -> Layer:
    """Parses one YAML document of a file, or of an override, with this name.

    Raises:
        InvalidSuiteError: If it is not YAML, or more than a suite may hold.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False
    try:
        root = yaml.compose(data if isinstance(data, str) else data.decode())
        if root is None:
            return Layer(name, None, None)
        _check_nodes(root, yaml.constructor.construct_object)
        return Layer(name, yaml.constructor.construct_document(root), root)
    except MarkedYAMLError as error:
        message = str(error.problem or error.context)
        message = message if isinstance(error, _RefusedError) else f"not valid YAML: {message}"
        where = _where(name, error.problem_mark or error.context_mark)
    except RecursionError:
        message, where = f"nested deeper than {MAX_DEPTH} levels", f"{name}:1:1"
    except (YAMLError, ValueError, ArithmeticError) as error:  # no text, or a strange escape sequence or directive
        message, where = f"not valid YAML: {' '.join(str(error).split())}", f"{name}:1:1"
    raise InvalidSuiteError([Problem(message, where, check="parse")])


class _RefusedError(MarkedYAMLError):
    """Valid YAML that a suite may not hold."""


def _check_nodes(root: Node, construct: Callable[[Node], Any]) -> None:
    """Refuses endless aliases, more values than anybody writes, unknown tags, and keys that are no words."""
    values, waiting = 0, [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if values > MAX_VALUES:
            _refuse(f"more than {MAX_VALUES:,} values", node)
        if depth > MAX_DEPTH:
            _refuse(f"nested deeper than {MAX_DEPTH} levels", node)
        if isinstance(node, ScalarNode):
            _check_scalar(node, construct)
        elif node.tag != _TAG + ("map" if isinstance(node, MappingNode) else "seq"):
            _refuse(f"unknown tag {node.tag}", node)
        elif isinstance(node, SequenceNode):
            waiting += [(child, depth + 1) for child in reversed(node.value)]
        else:
            for key, value in reversed(node.value):
                if key.tag != f"{_TAG}str":
                    shown = repr(key.value) if isinstance(key, ScalarNode) else "a collection"
                    _refuse(f"a key must be a word, not {shown}", key)
                waiting += [(value, depth + 1), (key, depth + 1)]


def _check_scalar(node: ScalarNode, construct: Callable[[Node], Any]) -> None:
    kind = str(node.tag).removeprefix(_TAG)
    if kind not in _SCALARS:
        _refuse(f"unknown tag {node.tag}", node)
    if kind == "timestamp":  # YAML 1.2 has no dates
        node.tag = f"{_TAG}str"
    try:
        value = construct(node)
        node.value.encode()
    except UnicodeEncodeError:
        _refuse("the text has half a character (a lone surrogate)", node)
    except (ValueError, LookupError, YAMLError):
        _refuse(f"{node.value!r} is not a valid {kind}", node)
    if isinstance(value, int) and abs(value) >= 2**63:
        _refuse(f"{node.value!r} is too large", node)


def parse_value(text: str) -> Any:
    """Parses a value of the command line.

    Raises:
        InvalidSuiteError: If it is not YAML.
    """
    return parse(text, "value").value


def _refuse(message: str, node: Node) -> NoReturn:
    raise _RefusedError(problem=message, problem_mark=node.start_mark)


def _where(name: str, mark: Any) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}"
