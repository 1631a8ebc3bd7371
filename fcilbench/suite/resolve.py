"""The plugins of a grid and the rules about them.

Entries are looked up, labelled, their options sorted and resolved through the registry; `tuned` and `exclude` rules
have conditions on them.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fcilbench.errors import UsageError, nearest
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Resolved, Unresolved
from fcilbench.registry.entrypoints import PluginRef, lookup
from fcilbench.spec.cell import PLUGIN_KINDS, PluginKind, PluginUse
from fcilbench.spec.params import same
from fcilbench.spec.protocol import Partition, Protocol
from fcilbench.suite.schema import AXES, PARTITION_KEYS, Grid, PluginEntry, Suite
from fcilbench.suite.yaml import Finding, KeyPath, one_line


@dataclass(frozen=True)
class Setting:
    """A value that a suite gives to a parameter, with its path in the suite."""

    value: Any
    path: KeyPath


Settings = Mapping[str, Setting]


@dataclass(eq=False)
class Entry:
    """One plugin entry of an axis.

    Attributes:
        axis: Its axis.
        path: Its path in the suite.
        written: As the suite writes it.
        ref: The plugin.
        label: What boards and filters call it.
        fields: Names of the plugin's parameters; none if the plugin is broken.
        broken: Whether the plugin cannot be imported.
        options: Parameters of the plugin that the entry sets.
        protocol: Protocol fields that an aggregator's entry sets.
        answers: What the registry says of these options, by what `tuned` rules add to them; likewise `uses`.
    """

    axis: PluginKind
    path: KeyPath
    written: PluginEntry
    ref: PluginRef
    label: str = ""
    fields: tuple[str, ...] = ()
    broken: bool = False
    options: dict[str, Setting] = field(default_factory=dict)
    protocol: dict[str, Setting] = field(default_factory=dict)
    answers: dict[str, Resolved | Unresolved] = field(default_factory=dict)
    uses: dict[str, PluginUse] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters without `tuned` rules: resolved if they are valid, else as they are written."""
        answer = self.resolve({})
        if isinstance(answer, Resolved):
            return answer.params
        return {name: setting.value for name, setting in self.options.items()}

    def resolve(self, tuned: Settings) -> Resolved | Unresolved:
        """Asks the registry, once, for the entry with these options of `tuned` rules."""
        key = _key_of(tuned)
        if key not in self.answers:
            values = {name: setting.value for name, setting in {**self.options, **tuned}.items()}
            self.answers[key] = catalog.resolve(self.ref, values)
        return self.answers[key]

    def use(self, tuned: Settings, answer: Resolved) -> PluginUse:
        """Returns what a cell carries of the plugin with these options; equal cells share it."""
        key = _key_of(tuned)
        if key not in self.uses:
            self.uses[key] = PluginUse(
                name=self.ref.name,
                label=self.label,
                version=answer.version,
                params=answer.params,
                identity=answer.identity,
                code_digest=answer.code_digest,
            )
        return self.uses[key]

    def findings(self, tuned: Settings, answer: Unresolved) -> list[Finding]:
        """Returns what the registry finds wrong, or missing on this machine, with the options."""
        if answer.prerequisite:
            return [Finding(each.message, self.path, hint=each.hint) for each in answer.problems]
        settings, found = {**self.options, **tuned}, []
        for problem in answer.problems:
            setting = settings.get(str(problem.loc[0])) if problem.loc else None
            path = (*setting.path, *problem.loc[1:]) if setting else self.path
            key = problem.message.startswith("unknown key") and len(problem.loc) == 1
            message = f"{self.axis} {self.label!r}: {problem.message}"
            found.append(Finding(message, path, key, problem.hint, "params"))
        return found


Entries = dict[PluginKind, list[Entry]]


def _key_of(settings: Settings) -> str:
    values = {name: setting.value for name, setting in settings.items()}
    return json.dumps(values, sort_keys=True, default=str) if values else ""


def read_entries(grid: Grid) -> tuple[Entries, list[Finding]]:
    """Looks plugins up, labels the entries and sorts their options.

    Returns:
        The entries whose plugin exists, and what is wrong with names, labels and keys.
    """
    entries: Entries = {axis: [] for axis in PLUGIN_KINDS}
    findings: list[Finding] = []
    for axis, kind in PLUGIN_KINDS.items():
        for index, each in enumerate(getattr(grid, axis)):
            path = ("grid", axis, index)
            try:
                entries[axis].append(Entry(axis, path, each, lookup(kind, each.use)))
            except UsageError as error:
                findings.append(Finding(error.message, (*path, "use"), hint=error.hint, check="plugins"))
        findings += _assign_labels(entries[axis])
    everything = [entry for axis in entries.values() for entry in axis]
    for entry, description in zip(everything, catalog.describe([each.ref for each in everything]), strict=True):
        entry.fields, entry.broken = description.field_names, description.problem is not None
        findings += _sort_options(entry)
    return entries, findings


Target = PluginKind | Literal["protocol"]
TARGETS: tuple[Target, ...] = (*PLUGIN_KINDS, "protocol")


def route(key: str, fields: Sequence[str]) -> tuple[Target, str]:
    """Says what a key of an aggregator's entry or of a `set` rule sets.

    Args:
        key: `protocol.lr`, `aggregator.lambda_s`, `backbone.model`, or a bare key for the aggregator or the protocol.
        fields: Parameters of the aggregator in question.

    Returns:
        `protocol` or the axis of a plugin, and the parameter's name. Parameters of plugins other than the aggregator
        are not checked here.

    Raises:
        ValueError: If nothing has that key, or both the aggregator and the protocol have it.

    Example:
        >>> route("lr", ["lambda_s"])
        ('protocol', 'lr')
    """
    head, dot, name = key.partition(".")
    homes: dict[Target, list[str]] = {"aggregator": list(fields), "protocol": list(Protocol.model_fields)}
    if not dot:
        found = [target for target, names in homes.items() if key in names]
        if len(found) > 1:
            raise ValueError(f"key {key!r} is ambiguous: write 'aggregator.{key}' or 'protocol.{key}'")
        if not found:
            raise ValueError(f"unknown key {key!r}{nearest(key, itertools.chain(*homes.values()))}")
        return found[0], key
    target = next((each for each in TARGETS if each == head), None)
    if target is None:
        raise ValueError(f"unknown key {key!r}{nearest(head, TARGETS)}")
    if target in homes and name not in homes[target]:
        raise ValueError(f"unknown key {name!r} of the {target}{nearest(name, homes[target])}")
    return target, name


def _sort_options(entry: Entry) -> list[Finding]:
    """Sorts the written options into those of the plugin and, for aggregators, those of the protocol."""
    findings = []
    for key, value in entry.written.options.items():
        setting = Setting(value, (*entry.path, key))
        if entry.axis != "aggregator" or entry.broken:
            entry.options[key] = setting
            continue
        try:
            target, name = route(key, entry.fields)
            if target not in ("aggregator", "protocol"):
                raise ValueError(f"an aggregator's entry cannot set {key!r}")
            (entry.options if target == "aggregator" else entry.protocol)[name] = setting
        except ValueError as error:
            message = f"aggregator {entry.label!r}: {error}"
            findings.append(Finding(message, setting.path, key=True, check="params"))
    return findings


def _assign_labels(entries: Sequence[Entry]) -> list[Finding]:
    """Gives every entry of an axis its label, and returns the labels that are used twice."""
    findings = []
    first: dict[str, Entry] = {}
    for entry in entries:
        entry.label = entry.written.label or _derived_label(entry, entries)
        same = first.setdefault(entry.label, entry)
        if same is not entry:
            places = " and ".join(".".join(map(str, each.path)) for each in (entry, same))
            hint = "remove one, or tell them apart by an option or a label"
            findings.append(Finding(f"{places} are both {entry.label!r}", entry.path, hint=hint, check="cells"))
    return findings


def _derived_label(entry: Entry, entries: Sequence[Entry]) -> str:
    """Returns the plugin's name and the options that tell it from its other entries, e.g. `sum[lambda_s=0.2]`."""
    others = [_written_options(each.written) for each in entries if each.ref == entry.ref]
    options = _written_options(entry.written).items()
    telling = {key: value for key, value in options if any(each.get(key) != value for each in others)}
    shown = ",".join(f"{key}={_shown(value)}" for key, value in telling.items())
    return one_line(f"{entry.written.use}[{shown}]" if shown else entry.written.use)


def _written_options(written: PluginEntry) -> dict[str, Any]:
    return written.model_dump(exclude={"use", "label"}, exclude_unset=True)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return os.path.basename(value) or value
    return json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True)
class Point:
    """One point of the grid, without the seed."""

    entries: Mapping[PluginKind, Entry]
    partition: Partition

    @property
    def labels(self) -> dict[str, str]:
        """The label on each axis, in the order of the grid."""
        plugins = {str(axis): entry.label for axis, entry in self.entries.items()}
        return {axis: plugins.get(axis, self.partition.label) for axis in AXES}

    @cached_property
    def values(self) -> dict[str, list[Any]]:
        """What a condition of a rule is compared with, by its key: names by axis, values by `axis.parameter`."""
        kind, value = self.partition.kind, self.partition.value
        found: dict[str, list[Any]] = {"partition": [self.partition.label, kind], f"partition.{kind}": [value]}
        found |= {f"partition.{name}": [each] for name, each in self.partition}
        for axis, entry in self.entries.items():
            found[axis] = sorted({entry.label, entry.written.use, entry.ref.short, entry.ref.name})
            found |= {f"{axis}.{name}": [each] for name, each in entry.params.items()}
        return found


@dataclass
class Rule:
    """A `tuned` or `exclude` rule.

    Attributes:
        path: Path of the rule in the suite.
        where: Its conditions by key; a list means any of its values.
        where_path: Path of the map that holds the conditions.
        values: What a `tuned` rule sets, by key.
        because: Why an `exclude` rule leaves cells out; empty for a `tuned` rule.
        locked: Whether it comes from a lock file, whose conditions are labels and nothing else.
        used: Whether it applied to a cell.
    """

    path: KeyPath
    where: dict[str, Any]
    where_path: KeyPath
    values: dict[str, Any] = field(default_factory=dict)
    because: str = ""
    locked: bool = False
    used: bool = False

    def matches(self, point: Point, protocol: Protocol, seed: int) -> bool:
        """Says whether all conditions hold for a cell, and remembers that."""
        for key, wanted in self.where.items():
            axis, _, name = key.partition(".")
            having = [seed] if axis == "seed" else point.values.get(key, ())
            having = [getattr(protocol, name, None)] if axis == "protocol" else having
            if not any(same(value, each) for value in _listed(wanted) for each in having):
                return False
            if self.locked and point.labels[key] != wanted:
                return False
        self.used = True
        return True


def read_rules(suite: Suite) -> list[Rule]:
    """Returns the `tuned` and the `exclude` rules of a suite."""
    rules = [
        Rule(("tuned", i), each.where, ("tuned", i, "where"), each.set, locked=each.study is not None)
        for i, each in enumerate(suite.tuned)
    ]
    for i, each in enumerate(suite.exclude):
        rules.append(Rule(("exclude", i), each.where, ("exclude", i), because=each.because))
    return rules


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


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


def unused_finding(rule: Rule, points: Sequence[Point]) -> Finding:
    """Says that a rule matches no cell, and which of its words is the name of no entry and of no partition."""
    details = []
    for key in rule.where.keys() & set(AXES):
        legal = {name for point in points for name in point.values[key]}
        strange = [str(value) for value in _listed(rule.where[key]) if str(value) not in legal]
        details += [f"the grid has no {key} {value!r}{nearest(value, legal)}" for value in strange]
    reason = f": {'; '.join(sorted(details))}" if details else ""
    message = f"{rule.path[0]}.{rule.path[1]} matches no cell{reason}"
    return Finding(message, rule.path, hint="remove it, or correct its conditions", check="rules")
