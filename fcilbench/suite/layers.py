"""How the layers of a suite lie on each other: maps merge, lists replace, the last one wins."""

from __future__ import annotations

from collections.abc import Sequence

from fcilbench.errors import UsageError
from fcilbench.suite.parse import Node, parse_value
from fcilbench.suite.problems import InvalidSuiteError, Problem
from fcilbench.suite.schema import PLUGIN_KINDS


def merge(base: Node, top: Node) -> Node:
    """Returns `top` over `base`: maps merge, everything else is replaced."""
    if not (isinstance(base.value, dict) and isinstance(top.value, dict)):
        return top
    merged = dict(base.value)
    for key, child in top.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return Node(merged, top.origin, top.key_origin)


def override(root: Node, text: str) -> list[Problem]:
    """Sets one value in place.

    Args:
        root: The suite.
        text: `path=value`; the value is YAML.

    Returns:
        What is wrong with the path.

    Raises:
        UsageError: If the text is not of the form `path=value`.
    """
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
