"""Says what is wrong with the structure of a suite: position, key, nearest legal word."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fcilbench.errors import nearest
from fcilbench.registry.validation import sentence
from fcilbench.spec.protocol import Partition
from fcilbench.suite.parse import Node, locate
from fcilbench.suite.problems import Problem
from fcilbench.suite.schema import AXES, Suite

_PARTITION_KEYS = ("dirichlet", "quantity", "kind", "value", "min_samples")


def schema_problems(error: ValidationError, tree: Node) -> list[Problem]:
    """Returns one problem for each value that the schema refuses.

    Args:
        error: What pydantic found.
        tree: The suite with its positions.
    """
    details = error.errors(include_url=False)
    problems = []
    for detail in details:
        loc = tuple(detail["loc"])
        parent = loc[:-1]
        inside = f" in {'.'.join(map(str, parent))}" if parent else ""
        if _follows_from_another(detail, details):
            continue
        if detail["type"] == "missing":
            problems.append(Problem(f"{sentence(detail, ())}{inside}", locate(tree, parent, key=bool(parent))))
        elif detail["type"] == "extra_forbidden":
            problems.append(Problem(sentence(detail, legal_keys(parent)) + inside, locate(tree, loc, key=True)))
        elif detail["type"] == "too_short":
            problems.append(Problem(f"{'.'.join(map(str, loc))}: must not be empty", locate(tree, loc)))
        else:
            problems.append(Problem(sentence(detail, ()), locate(tree, _written(tree, loc))))
    return problems


def _follows_from_another(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """Says whether an error is only the shadow of another one.

    A missing key whose misspelling is reported is one mistake, not two; and a list does not become empty because its
    entries are invalid.
    """
    loc = detail["loc"]
    if detail["type"] == "too_short":
        return any(len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in details)
    if detail["type"] == "missing":
        return any(
            other["type"] == "extra_forbidden"
            and other["loc"][:-1] == loc[:-1]
            and f"did you mean {str(loc[-1])!r}" in nearest(str(other["loc"][-1]), legal_keys(loc[:-1]))
            for other in details
        )
    return False


def condition_problems(tree: Node) -> list[Problem]:
    """Returns the conditions of `tuned` and `exclude` rules whose axis does not exist."""
    problems = []
    for section, inner in (("tuned", "where"), ("exclude", None)):
        rules = tree.child(section)
        for index, rule in enumerate(rules.value if rules and isinstance(rules.value, list) else []):
            conditions = rule.child(inner) if inner else rule
            for key in conditions.value if conditions and isinstance(conditions.value, dict) else ():
                message = None if key == "because" and not inner else _condition_problem(key)
                if message:
                    path = (section, index, *([inner] if inner else []), key)
                    problems.append(Problem(message, locate(tree, path, key=True), check="rules"))
    return problems


def legal_keys(loc: Sequence[str | int]) -> list[str]:
    """Returns the keys that a map of the suite may have.

    Args:
        loc: Path of the map.
    """
    current: Any = Suite
    for step in loc:
        if isinstance(step, str) and isinstance(current, type) and issubclass(current, BaseModel):
            found = current.model_fields.get(step)
            current = _unwrapped(found.annotation if found else None)
        elif isinstance(step, int):
            arguments = get_args(current)
            current = _unwrapped(arguments[0] if arguments else None)
    if current is Partition:
        return list(_PARTITION_KEYS)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _unwrapped(annotation: Any) -> Any:
    """Removes `Annotated` and `| None` around a type."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return next((each for each in get_args(annotation) if each is not type(None)), None)
    return annotation


def _written(tree: Node, loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """Maps the long form of a partition back to how the suite wrote it."""
    if len(loc) == 4 and loc[:2] == ("grid", "partition") and loc[3] == "value":
        for key in ("dirichlet", "quantity"):
            path = (*loc[:3], key)
            node: Node | None = tree
            for step in path:
                node = node.child(step) if node else None
            if node is not None:
                return path
    return tuple(loc)


def _condition_problem(key: str) -> str | None:
    head, dot, rest = key.partition(".")
    heads = [*AXES, "protocol"] if dot else [*AXES, "seed"]
    if head not in heads:
        return f"unknown axis {head!r}{nearest(head, heads)}"
    if head == "partition" and dot and rest not in _PARTITION_KEYS:
        return f"unknown key {rest!r} of a partition{nearest(rest, _PARTITION_KEYS)}"
    return None
