"""Conditions of `tuned` and `exclude` rules, and the values that tuned rules set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fcilbench.errors import nearest
from fcilbench.spec.protocol import Partition, Protocol
from fcilbench.suite.entries import Entries, Entry
from fcilbench.suite.keys import Setting, route
from fcilbench.suite.parse import Node, Path, locate
from fcilbench.suite.problems import Problem
from fcilbench.suite.schema import PLUGIN_KINDS, PluginAxis


@dataclass(frozen=True)
class Point:
    """One point of the grid, without the seed."""

    entries: Mapping[PluginAxis, Entry]
    partition: Partition
    partition_index: int


@dataclass
class Rule:
    """A `tuned` or `exclude` rule.

    Attributes:
        path: Path of the rule in the suite.
        conditions: By key; a list is any of its values.
        conditions_path: Path of the map that holds the conditions.
        used: Number of cells that it applied to.
    """

    path: Path
    conditions: dict[str, Any]
    conditions_path: Path
    used: int = 0

    def matches(self, point: Point, protocol: Protocol, seed: int) -> bool:
        """Says whether all conditions hold for a cell."""
        return all(_holds(key, value, point, protocol, seed) for key, value in self.conditions.items())


def _holds(key: str, wanted: Any, point: Point, protocol: Protocol, seed: int) -> bool:
    values = wanted if isinstance(wanted, list) else [wanted]
    axis, dot, name = key.partition(".")
    if axis == "seed":
        return any(_same(value, seed) for value in values)
    if axis == "partition":
        return any(_same(value, having) for value in values for having in _partition_values(point.partition, name))
    if axis == "protocol":
        return any(_same(value, getattr(protocol, name, None)) for value in values)
    entry = next(each for each in point.entries.values() if each.axis == axis)
    if not dot:
        return any(value in entry.names for value in values if isinstance(value, str))
    return name in entry.params and any(_same(value, entry.params[name]) for value in values)


def _partition_values(partition: Partition, name: str) -> list[Any]:
    if not name:
        return [partition.label, partition.kind]
    if name in ("dirichlet", "quantity"):
        return [partition.value] if partition.kind == name else []
    return [getattr(partition, name)]


def _same(one: Any, other: Any) -> bool:
    """Compares values as a reader of YAML does: 1 is 1.0, but true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


@dataclass
class Tuned:
    """What rules have set for one cell: plugin options by axis, and protocol fields."""

    plugins: dict[PluginAxis, dict[str, Setting]] = field(default_factory=lambda: {axis: {} for axis in PLUGIN_KINDS})
    protocol: dict[str, Setting] = field(default_factory=dict)


def apply_rule(rule: Rule, values: Mapping[str, Any], point: Point, tuned: Tuned, tree: Node) -> list[Problem]:
    """Applies a `tuned` rule to one cell.

    Args:
        rule: A rule that matches the cell.
        values: What it sets.
        point: Where the cell is.
        tuned: What earlier rules have set; changed in place.
        tree: The suite with its positions.

    Returns:
        Keys that the cell does not have, or that its entry gives itself: a label that says `sum[lambda_s=0.2]` must not
        lie.
    """
    aggregator = point.entries["aggregator"]
    problems = []
    for key, value in values.items() if aggregator.broken is None else ():
        setting = Setting(value, (*rule.path, "set", key))
        hint = "narrow the rule's `where`, or correct the key"
        where = locate(tree, setting.path, key=True)
        try:
            target, name = route(key, aggregator.fields)
        except ValueError as error:
            message = f"{error} (rule applies to aggregator {aggregator.label!r})"
            problems.append(Problem(message, where, hint, check="rules"))
            continue
        entry = aggregator if target == "protocol" else point.entries[target]
        written = (entry.protocol if target == "protocol" else entry.options).get(name)
        if written is None:
            (tuned.protocol if target == "protocol" else tuned.plugins[target])[name] = setting
        else:
            message = f"{key!r} would override what {entry.label!r} is given at {locate(tree, written.path)}"
            problems.append(Problem(message, where, hint, check="rules"))
    return problems


def key_problems(rule: Rule, entries: Entries, tree: Node) -> list[Problem]:
    """Returns the parameters that a rule asks for and that no entry of the axis has."""
    problems = []
    for key in rule.conditions:
        axis, dot, name = key.partition(".")
        if axis == "protocol":
            legal = set(Protocol.model_fields)
        elif dot and axis in entries:
            legal = {param for entry in entries[axis] for param in entry.params}
            if any(entry.broken for entry in entries[axis]):
                continue
        else:
            continue
        if name not in legal:
            where = locate(tree, (*rule.conditions_path, key), key=True)
            problems.append(Problem(f"unknown key {key!r}{nearest(name, legal)}", where, check="rules"))
    return problems


def unused_problem(rule: Rule, entries: Entries, partitions: list[str], tree: Node) -> Problem:
    """Says that a rule matches no cell, and which of its words is on no axis."""
    section, index = rule.path[0], rule.path[1]
    details = []
    for key, wanted in rule.conditions.items():
        if key in entries:
            legal = {name for entry in entries[key] for name in entry.names}
        elif key == "partition":
            legal = set(partitions)
        else:
            continue
        for value in wanted if isinstance(wanted, list) else [wanted]:
            if str(value) not in legal:
                details.append(f"the grid has no {key} {str(value)!r}{nearest(str(value), legal)}")
    reason = f": {'; '.join(details)}" if details else ""
    hint = "remove it, or correct its conditions"
    return Problem(f"{section}.{index} matches no cell{reason}", locate(tree, rule.path), hint, check="rules")
