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
        """Returns how many steps of a path this layer has, where the last one stands, and whether to look further down.

        Where `key` is set, the place is that of the value's key. An override of another value has half a step less: it
        explains a value that it alone brings into the suite, and no other.
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
    """Returns the layer and the place of a value, or of the nearest value that holds it.

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
    """Parses one YAML document of a file, or of an override, with this name.

    Raises:
        InvalidSuiteError: If it is not YAML, or more than a suite may hold.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        text = data if isinstance(data, str) else data.decode()
        root = yaml.compose(text)
        return Layer(name, None if root is None else yaml.constructor.construct_document(root), root)
    except UnicodeDecodeError as error:
        message, where = "the file is not UTF-8 text", _end(name, error.object[: error.start].decode())
    except ReaderError as error:
        message, where = f"not valid YAML: {str(error).splitlines()[0]}", _end(name, text[: error.position])
    except MarkedYAMLError as error:
        message = " ".join(part for part in (error.problem, error.context) if part)
        message = message if isinstance(error, _RefusedError) else f"not valid YAML: {message}"
        where = _where(name, error.problem_mark or error.context_mark)
    except (YAMLError, ValueError, ArithmeticError) as error:  # of a strange escape sequence or directive
        message, where = f"not valid YAML: {error}", f"{name}:1:1"
    raise InvalidSuiteError([Problem(message, where, check="parse")])


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
        self._sizes: dict[int, int] = {}  # values of a finished node, itself included
        self._keys: dict[tuple[int, str], Any] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event, before = self.parser.peek_event(), self._values
        alias = isinstance(event, AliasEvent)
        size: int | None = 1
        if alias and event.anchor in self.anchors:
            size = self._sizes.get(id(self.anchors[event.anchor]))
        if size is None:
            _stop("an alias cannot stand inside its own anchor", event)
        self._values += size
        if self._values > MAX_VALUES:
            _stop(f"more than {MAX_VALUES:,} values", event)
        if self.depth >= MAX_DEPTH:
            _stop(f"nested deeper than {MAX_DEPTH} levels", event)
        node = super().compose_node(parent, index)
        if not alias:
            self._sizes[id(node)] = self._values - before
            self._check_value(node)
        if isinstance(parent, MappingNode) and index is None:
            self._check_key(parent, node, event)
        return node

    def _check_value(self, node: Node) -> None:
        kind = str(node.tag).removeprefix(_TAG)
        if not isinstance(node, ScalarNode):
            if kind != ("map" if isinstance(node, MappingNode) else "seq"):
                _stop(f"unknown tag {node.tag}", node)
            return
        if kind == "timestamp":  # YAML 1.2 has no dates
            node.tag = f"{_TAG}str"
        elif kind not in ("null", "bool", "int", "float", "str", "merge"):
            _stop(f"unknown tag {node.tag}", node)
        try:
            value = self.loader.constructor.construct_object(node) if kind != "merge" else None
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
            shown = repr(node.value) if isinstance(node, ScalarNode) else "a collection"
            _stop(f"a key must be a word, not {shown}", event)
        first = self._keys.setdefault((id(parent), node.value), event.start_mark)
        if first is not event.start_mark:
            _stop(f"duplicate key {node.value!r}, first at line {first.line + 1}", event)


def _stop(message: str, at: Any) -> NoReturn:
    raise _RefusedError(problem=message, problem_mark=at.start_mark)


def _where(name: str, mark: Any) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}"


def _end(name: str, before: str) -> str:
    """Returns the place of the character after a text."""
    return f"{name}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _child(node: Node | None, step: str | int) -> tuple[Node | None, Node] | None:
    """Returns the nodes of key and value under a key or an index."""
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        return None, node.value[step]
    return None
