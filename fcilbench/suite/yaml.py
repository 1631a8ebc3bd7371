"""YAML 1.2 to plain values, and back from a path within them to `file:line:column`.

ruamel.yaml parses the text and marks every node with its position. What a suite may not hold (a key twice, an unknown
tag, endless aliases, more values than anybody writes) is refused while the nodes are built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from fcilbench.suite.problems import InvalidSuiteError, KeyPath, Problem

MAX_BYTES = 1_000_000
"""Largest suite file."""
MAX_VALUES = 20_000
"""Most values of one file; each use of an alias counts all values of its anchor."""
MAX_DEPTH = 40
"""Deepest nesting of values."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = ("null", "bool", "int", "float", "str", "timestamp")


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

    def find(self, path: KeyPath, *, key: bool = False) -> tuple[float, str, bool]:
        """Looks for a value in this layer.

        Args:
            path: Path of the value in the suite.
            key: Point at the value's key instead.

        Returns:
            How many steps of the path this layer has (half a step less if it is an override of another value), the
            position of the last step, and whether lower layers may have more steps.
        """
        at = self.at or ()
        if path[: len(at)] != at:
            common = next((i for i, (one, two) in enumerate(zip(at, path, strict=False)) if one != two), len(path))
            return common - 0.5, self.name, True
        node, key_node, steps, in_list = self.root, None, len(at), False
        while steps < len(path) and (child := _child(node, path[steps])):
            in_list = in_list or isinstance(node, SequenceNode)
            (key_node, node), steps = child, steps + 1
        missing = steps < len(path)
        at_key = key or (missing and not isinstance(node, ScalarNode))
        shown = key_node if key_node is not None and at_key else node
        where = self.name if self.at is not None or shown is None else _where(self.name, shown.start_mark)
        return steps, where, missing and not in_list and isinstance(node, MappingNode)


def locate(layers: Sequence[Layer], path: KeyPath, *, key: bool = False) -> tuple[Layer, str]:
    """Returns the layer and the position of a value, or of the nearest value that holds it.

    Args:
        layers: From the lowest to the one that wins.
        path: Path of the value; it need not exist.
        key: Point at the value's key instead.
    """
    best, deepest = (layers[-1], layers[-1].name), -1.0
    for layer in reversed(layers):
        steps, where, further = layer.find(path, key=key)
        if steps > deepest:
            best, deepest = (layer, where), steps
        if not further:
            break
    return best


def parse(data: bytes | str, name: str) -> Layer:
    """Parses one YAML document.

    Args:
        data: The document.
        name: Name of its file, for positions.

    Raises:
        InvalidSuiteError: If it is not YAML, or more than a suite may hold.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        root = yaml.compose(text)
        value = None if root is None else yaml.constructor.construct_document(root)
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        _refuse("the file is not UTF-8 text", _position(name, before.decode("utf-8")), error)
    except ReaderError as error:
        code = error.character if isinstance(error.character, int) else 0
        _refuse(
            f"not valid YAML: the character U+{code:04X} is not allowed", _position(name, text[: error.position]), error
        )
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.problem, error.context) if part)
        prefix = "" if isinstance(error, _RefusedError) else "not valid YAML: "
        _refuse(prefix + what, _where(name, mark) if mark else f"{name}:1:1", error)
    except (YAMLError, ValueError, ArithmeticError) as error:  # of a strange escape sequence or directive
        _refuse(f"not valid YAML: {error}", f"{name}:1:1", error)
    return Layer(name, value, root)


def parse_value(text: str) -> Any:
    """Parses a value of the command line.

    Raises:
        InvalidSuiteError: If it is not YAML.
    """
    return parse(text, "value").value


class _RefusedError(ComposerError):
    """Valid YAML that a suite may not hold."""


class _Composer(Composer):
    """Builds the nodes of a document and refuses, at its place, what a suite may not hold."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False
        self._values = 0
        self._known: dict[int, tuple[int, int]] = {}  # values and levels of a finished node
        self._keys: dict[tuple[int, str], Any] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event, before = self.parser.peek_event(), self._values
        values, levels = 1, 1
        if isinstance(event, AliasEvent) and event.anchor in self.anchors:
            known = self._known.get(id(self.anchors[event.anchor]))
            if known is None:
                _stop("an alias cannot stand inside its own anchor", event)
            values, levels = known
        self._values += values
        if self._values > MAX_VALUES:
            _stop(f"more than {MAX_VALUES:,} values", event)
        if self.depth + levels > MAX_DEPTH:
            _stop(f"nested deeper than {MAX_DEPTH} levels", event)
        node = super().compose_node(parent, index)
        if not isinstance(event, AliasEvent):
            children = [] if isinstance(node, ScalarNode) else node.value
            inner = [each[1] if isinstance(each, tuple) else each for each in children]
            levels = 1 + max((self._known[id(each)][1] for each in inner), default=0)
            self._known[id(node)] = self._values - before, levels
            self._check_value(node)
        if isinstance(parent, MappingNode) and index is None:
            self._check_key(parent, node, event)
        return node

    def _check_value(self, node: Node) -> None:
        kind = str(node.tag).removeprefix(_TAG)
        if kind == "timestamp":  # YAML 1.2 has no dates
            node.tag = f"{_TAG}str"
        if not isinstance(node, ScalarNode):
            if kind != ("map" if isinstance(node, MappingNode) else "seq"):
                _stop(f"unknown tag {node.tag}", node)
            return
        if kind == "merge":
            return
        if kind not in _SCALARS:
            _stop(f"unknown tag {node.tag}", node)
        try:
            value = self.loader.constructor.construct_object(node)
            node.value.encode()
        except UnicodeEncodeError:
            _stop("the text has half a character (a lone surrogate)", node)
        except (ValueError, LookupError, YAMLError):
            _stop(f"{node.value!r} is not a valid {kind}", node)
        if isinstance(value, int) and abs(value) >= 2**63:
            _stop(f"{node.value!r} is too large", node)

    def _check_key(self, parent: Node, node: Node, event: Any) -> None:
        kind = str(node.tag).removeprefix(_TAG)
        if kind == "merge":
            _stop("merge keys `<<` are not part of YAML 1.2: use `extends`, or write the keys out", event)
        if kind != "str":
            shown = node.value if isinstance(node, ScalarNode) else "a collection"
            _stop(f"a key must be a word, not {shown}", event)
        first = self._keys.setdefault((id(parent), node.value), event.start_mark)
        if first is not event.start_mark:
            _stop(f"duplicate key {node.value!r}, first at line {first.line + 1}", event)


def _stop(message: str, at: Any) -> NoReturn:
    raise _RefusedError(problem=message, problem_mark=at.start_mark)


def _refuse(message: str, where: str, error: Exception) -> NoReturn:
    raise InvalidSuiteError([Problem(message, where, check="parse")]) from error


def _where(name: str, mark: Any) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}"


def _position(name: str, before: str) -> str:
    """Returns the position after a text."""
    return f"{name}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _child(node: Node | None, step: str | int) -> tuple[Node | None, Node] | None:
    """Returns the nodes of key and value under a key or an index."""
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        return None, node.value[step]
    return None
