"""Rules of a suite: the conditions of `tuned` and `exclude`, and the values that `tuned` rules set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fcilbench.errors import nearest
from fcilbench.spec.protocol import Partition, Protocol
from fcilbench.suite.resolve import Entries, Entry, Setting, Target, route
from fcilbench.suite.schema import AXES, PARTITION_KEYS, PluginAxis, Suite
from fcilbench.suite.yaml import Finding, KeyPath


@dataclass(frozen=True)
class Point:
    """One point of the grid, without the seed."""

    entries: Mapping[PluginAxis, Entry]
    partition: Partition

    @property
    def labels(self) -> dict[str, str]:
        """The label on each axis, in the order of the grid."""
        plugins = {str(axis): entry.label for axis, entry in self.entries.items()}
        return {axis: plugins.get(axis, self.partition.label) for axis in AXES}


@dataclass
class Rule:
    """A `tuned` or `exclude` rule.

    Attributes:
        path: Path of the rule in the suite.
        where: Its conditions by key; a list means any of its values.
        where_path: Path of the map that holds the conditions.
        values: What a `tuned` rule sets, by key.
        because: Why an `exclude` rule leaves cells out; empty for a `tuned` rule.
        used: Whether it applied to a cell.
    """

    path: KeyPath
    where: dict[str, Any]
    where_path: KeyPath
    values: dict[str, Any] = field(default_factory=dict)
    because: str = ""
    used: bool = False

    def matches(self, point: Point, protocol: Protocol, seed: int) -> bool:
        """Says whether all conditions hold for a cell, and remembers that."""
        holds = all(_holds(key, value, point, protocol, seed) for key, value in self.where.items())
        self.used = self.used or holds
        return holds


def read_rules(suite: Suite) -> list[Rule]:
    """Returns the `tuned` and the `exclude` rules of a suite."""
    rules = [Rule(("tuned", i), each.where, ("tuned", i, "where"), each.set) for i, each in enumerate(suite.tuned)]
    for i, each in enumerate(suite.exclude):
        rules.append(Rule(("exclude", i), each.where, ("exclude", i), because=each.because))
    return rules


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


def apply_rule(rule: Rule, point: Point, tuned: dict[Target, dict[str, Setting]]) -> list[Finding]:
    """Adds what a `tuned` rule sets for a cell that it matches to what earlier rules have set.

    Returns what is wrong: keys that the cell does not have, or that its entry gives itself, so that a label such as
    `sum[lambda_s=0.2]` does not lie.
    """
    aggregator = point.entries["aggregator"]
    hint = "narrow the rule's `where`, or correct the key"
    findings = []
    for key, value in rule.values.items() if not aggregator.broken else ():
        setting = Setting(value, (*rule.path, "set", key))
        try:
            target, name = route(key, aggregator.fields)
        except ValueError as error:
            message = f"{error} (rule applies to aggregator {aggregator.label!r})"
            findings.append(Finding(message, setting.path, True, hint, "rules"))
            continue
        entry = aggregator if target == "protocol" else point.entries[target]
        given = (entry.protocol if target == "protocol" else entry.options).get(name)
        if given is None:
            tuned[target][name] = setting
        else:
            message = f"{key!r} would override what {entry.label!r} is given as {'.'.join(map(str, given.path))}"
            findings.append(Finding(message, setting.path, True, hint, "rules"))
    return findings


def condition_findings(rule: Rule, entries: Entries) -> list[Finding]:
    """Returns the conditions on axes that do not exist, and on parameters that no entry of their axis has."""
    messages = {key: _condition_problem(key, entries) for key in rule.where}
    paths = {key: (*rule.where_path, key) for key in rule.where}
    return [Finding(message, paths[key], key=True, check="rules") for key, message in messages.items() if message]


def _condition_problem(key: str, entries: Entries) -> str | None:
    head, dot, name = key.partition(".")
    heads = [*AXES, "protocol"] if dot else [*AXES, "seed"]
    if head not in heads:
        return f"unknown axis {head!r}{nearest(head, heads)}"
    members = next((found for axis, found in entries.items() if axis == head), [])
    if not dot or any(entry.broken for entry in members):
        return None
    legal = {each for entry in members for each in entry.fields}
    if not members:
        legal = set(PARTITION_KEYS if head == "partition" else Protocol.model_fields)
    return None if name in legal else f"unknown key {key!r}{nearest(name, legal)}"


def unused_finding(rule: Rule, entries: Entries, partitions: Sequence[Partition]) -> Finding:
    """Says that a rule matches no cell, and which of its words is the name of no entry and of no partition."""
    legal: dict[str, set[str]] = {axis: {n for entry in found for n in entry.names} for axis, found in entries.items()}
    legal["partition"] = {name for each in partitions for name in (each.label, each.kind)}
    details = [
        f"the grid has no {key} {str(value)!r}{nearest(str(value), legal[key])}"
        for key, wanted in rule.where.items()
        for value in (wanted if isinstance(wanted, list) else [wanted])
        if key in legal and str(value) not in legal[key]
    ]
    reason = f": {'; '.join(details)}" if details else ""
    message = f"{rule.path[0]}.{rule.path[1]} matches no cell{reason}"
    return Finding(message, rule.path, hint="remove it, or correct its conditions", check="rules")
