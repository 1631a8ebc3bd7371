"""The plugins of a grid and the rules about them.

Entries are looked up, labelled, their options sorted and resolved through the registry; `tuned` and `exclude` rules
have conditions on them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

from fcilbench.errors import KeyPath, Problem, UsageError, nearest
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Resolved
from fcilbench.registry.entrypoints import PluginRef, lookup
from fcilbench.spec.cell import OWN, PLUGIN_KINDS, SELECTORS, PluginKind
from fcilbench.spec.params import SPACE, same, search_space
from fcilbench.spec.protocol import SELECTOR_LABEL, Partition, Protocol
from fcilbench.suite.schema import AXES, Grid, PluginEntry, Suite
from fcilbench.suite.yaml import one_line

Place = PluginKind | Literal["selector"]
"""What a plugin is of a cell: an axis of the grid, or one of its selectors."""

Target = Place | Literal["protocol"]


@dataclass(frozen=True)
class Setting:
    """A value that a suite gives to a parameter, with its path in the suite."""

    value: Any
    path: KeyPath


Settings = dict[tuple[Target, str], Setting]
"""Settings by what they set: the axis of a plugin or `protocol`, and the parameter's name."""


def settings_of(target: Target, *layers: Settings) -> dict[str, Setting]:
    """Returns what is set of one plugin, or of the protocol, by parameter; the last layer wins."""
    return {name: each for layer in layers for (whose, name), each in layer.items() if whose == target}


@dataclass(eq=False)
class GridEntry:
    """One plugin entry of an axis, or of the selectors (`axis` is then `selector`).

    Attributes:
        fields: Names of the plugin's parameters; none if the plugin is broken.
        tunable: Those that tuning searches.
        settings: What the entry sets: parameters of the plugin and, for an aggregator, fields of the protocol.
        answers: Answers of the registry by the values that it was asked with.
    """

    axis: Place
    path: KeyPath
    written: PluginEntry
    ref: PluginRef
    label: str = ""
    fields: tuple[str, ...] = ()
    tunable: tuple[str, ...] = ()
    broken: bool = False
    settings: Settings = field(default_factory=dict)
    answers: dict[str, Resolved] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters without `tuned` rules: resolved if they are valid, else as they are written."""
        answer = self.resolve({})
        written = {name: setting.value for name, setting in settings_of(self.axis, self.settings).items()}
        return written if answer.problems else answer.params

    def resolve(self, tuned: Settings) -> Resolved:
        """Resolves the entry's parameters together with those that `tuned` rules set."""
        settings = settings_of(self.axis, self.settings, tuned)
        values = {name: setting.value for name, setting in settings.items()}
        key = json.dumps(values, sort_keys=True, default=str)
        if key not in self.answers:
            self.answers[key] = catalog.resolve(self.ref, values)
        return self.answers[key]

    def problems(self, tuned: Settings) -> list[Problem]:
        """Returns the problems of `resolve` with their paths in the suite."""
        answer, problems = self.resolve(tuned), []
        settings = settings_of(self.axis, self.settings, tuned)
        for problem in answer.problems:
            setting = settings.get(str(problem.path[0])) if problem.path else None
            path = (*setting.path, *problem.path[1:]) if setting else self.path
            message = problem.message if answer.prerequisite else f"{self.axis} {self.label!r}: {problem.message}"
            problems.append(Problem(message, path, problem.hint, problem.key and setting is not None, "params"))
        return problems


Entries = dict[PluginKind, list[GridEntry]]


def read_entries(grid: Grid) -> tuple[Entries, list[Problem]]:
    """Returns the entries whose plugin exists, and what is wrong with names, labels and keys."""
    entries: Entries = {axis: [] for axis in PLUGIN_KINDS}
    problems: list[Problem] = []
    for axis, kind in PLUGIN_KINDS.items():
        for index, each in enumerate(getattr(grid, axis)):
            path = ("grid", axis, index)
            try:
                entries[axis].append(GridEntry(axis, path, each, lookup(kind, each.use)))
            except UsageError as error:
                problems.append(Problem(error.message, (*path, "use"), error.hint, check="plugins"))
        for entry in entries[axis]:
            alike = [other.written for other in entries[axis] if other.ref == entry.ref]
            entry.label = entry.written.label or derived_label(entry.written, alike)
        problems += label_problems([(entry.label, entry.path) for entry in entries[axis]])
    return entries, problems + _describe([entry for axis in entries.values() for entry in axis])


def read_selectors(written: Sequence[PluginEntry]) -> tuple[list[GridEntry], list[Problem]]:
    """Returns the selectors whose plugin exists, and what is wrong with names, labels and keys."""
    entries: list[GridEntry] = []
    problems: list[Problem] = []
    for index, each in enumerate(written):
        path = ("evaluate", "selectors", index)
        try:
            entries.append(GridEntry("selector", path, each, lookup(SELECTORS, each.use)))
        except UsageError as error:
            problems.append(Problem(error.message, (*path, "use"), error.hint, check="plugins"))
    for entry, label in zip(entries, selector_labels([each.written for each in entries]), strict=True):
        entry.label = label
        if not re.fullmatch(SELECTOR_LABEL, entry.label):
            message = f"{entry.label!r} cannot be part of a figure's name"
            problems.append(Problem(message, entry.path, "give it a short `label` of letters and digits"))
        if entry.label == OWN.label and entry.ref.name != OWN.name:
            problems.append(Problem(f"label {OWN.label!r} is that of {OWN.name}", entry.path, "give it another label"))
    problems += label_problems([(entry.label, entry.path) for entry in entries])
    return entries, problems + _describe(entries)


def selector_labels(written: Sequence[PluginEntry]) -> list[str]:
    """Returns what each entry of `evaluate.selectors` is called: as it says, else by its plugin's short name.

    Options tell entries of one plugin apart, as on an axis. The method's own rule has one name.
    """
    shorts = [each.model_copy(update={"use": each.use.rpartition("/")[2]}) for each in written]
    alike = [[other for other in shorts if other.use == each.use] for each in shorts]
    return [
        OWN.label if given.use in (OWN.label, OWN.name) else given.label or derived_label(short, others)
        for given, short, others in zip(written, shorts, alike, strict=True)
    ]


def _describe(entries: Sequence[GridEntry]) -> list[Problem]:
    """Fills in what the plugins of entries declare, and what the entries set; returns what is wrong with their keys."""
    problems = []
    for entry, description in zip(entries, catalog.describe([each.ref for each in entries]), strict=True):
        entry.fields, entry.broken = description.field_names, description.problem is not None
        properties = description.schema.get("properties", {})
        entry.tunable = tuple(name for name, each in properties.items() if SPACE in each)
        problems += _sort_options(entry)
    return problems


def label_problems(labels: Sequence[tuple[str, KeyPath]]) -> list[Problem]:
    """Returns a problem for each entry of an axis, given as label and path, with the label of an earlier one."""
    first: dict[str, KeyPath] = {}
    problems = []
    for label, path in labels:
        if first.setdefault(label, path) != path:
            places = " and ".join(".".join(map(str, each)) for each in (path, first[label]))
            hint = "remove one, or tell them apart by an option or a label"
            problems.append(Problem(f"{places} are both {label!r}", path, hint, check="cells"))
    return problems


def derived_label(entry: PluginEntry, alike: Sequence[PluginEntry]) -> str:
    """Returns the plugin's name and the options that tell an entry from the others of the plugin.

    `alike` are all entries of that plugin on the axis. An example is `sum[lambda_s=0.2]`.
    """

    def options(each: PluginEntry) -> dict[str, Any]:
        return each.model_dump(exclude={"use", "label"}, exclude_unset=True)

    others = [options(each) for each in alike]
    telling = {key: value for key, value in options(entry).items() if any(each.get(key) != value for each in others)}
    shown = ",".join(f"{key}={_shown(value)}" for key, value in telling.items())
    return one_line(f"{entry.use}[{shown}]" if shown else entry.use)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return os.path.basename(value) or value
    return json.dumps(value, separators=(",", ":"))


def _sort_options(entry: GridEntry) -> list[Problem]:
    """Fills the settings of an entry from its written options; returns what is wrong with their keys."""
    problems = []
    for key, value in entry.written.options.items():
        setting = Setting(value, (*entry.path, key))
        target: Target = entry.axis
        name = key
        try:
            if entry.axis == "aggregator" and not entry.broken:
                target, name = route(key, entry.fields)
                if target not in ("aggregator", "protocol"):
                    raise ValueError(f"an aggregator's entry cannot set {key!r}")
            entry.settings[target, name] = setting
        except ValueError as error:
            problems.append(Problem(f"aggregator {entry.label!r}: {error}", setting.path, None, True, "params"))
    return problems


def route(key: str, fields: Sequence[str]) -> tuple[PluginKind | Literal["protocol"], str]:
    """Returns what a key of an aggregator's entry or of a `set` rule sets: a plugin's axis or `protocol`, and a name.

    Args:
        key: `protocol.lr`, `aggregator.lambda_s`, `backbone.model`, or a bare key for the aggregator or the protocol.
        fields: Parameters of the aggregator; the other plugins check theirs when they are resolved.

    Raises:
        ValueError: If nothing has that key, or both the aggregator and the protocol have it.

    Example:
        >>> route("lr", ["lambda_s"])
        ('protocol', 'lr')
    """
    names: dict[PluginKind | Literal["protocol"], list[str]] = {
        "aggregator": list(fields),
        "protocol": list(Protocol.model_fields),
    }
    homes = {f"{target}.{name}": (target, name) for target in names for name in names[target]}
    meant = [home for full, home in homes.items() if key in (full, home[1])]
    if len(meant) > 1:
        raise ValueError(f"key {key!r} is ambiguous: write 'aggregator.{key}' or 'protocol.{key}'")
    if meant:
        return meant[0]
    head, dot, name = key.partition(".")
    if head in PLUGIN_KINDS and head != "aggregator" and name:
        return cast(PluginKind, head), name
    legal = homes if dot else [home[1] for home in homes.values()]
    raise ValueError(f"unknown key {key!r}{nearest(key, legal)}")


@dataclass(frozen=True)
class Point:
    """One point of the grid, without the seed."""

    entries: Mapping[PluginKind, GridEntry]
    partition: Partition

    @property
    def labels(self) -> dict[str, str]:
        """The label on each axis, in the order of the grid."""
        plugins = {str(axis): entry.label for axis, entry in self.entries.items()}
        return {axis: plugins.get(axis, self.partition.label) for axis in AXES}

    @cached_property
    def values(self) -> dict[str, list[Any]]:
        """The values that the conditions of rules may name: by axis its names, by `axis.parameter` its value."""
        kind, value = self.partition.kind, self.partition.value
        values: dict[str, list[Any]] = {"partition": [self.partition.label, kind], f"partition.{kind}": [value]}
        values |= {f"partition.{name}": [own] for name, own in self.partition}
        for axis, entry in self.entries.items():
            values[axis] = sorted({entry.label, entry.written.use, entry.ref.short, entry.ref.name})
            values |= {f"{axis}.{name}": [own] for name, own in entry.params.items()}
        return values


@dataclass
class Rule:
    """A `tuned` or `exclude` rule.

    Attributes:
        where: Its conditions by key; a list means any of its values.
        values: What a `tuned` rule sets, by key.
        because: Why an `exclude` rule leaves cells out; empty for a `tuned` rule.
        locked: Whether it comes from a lock file, in which a condition names a label and nothing else.
    """

    path: KeyPath
    where: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    because: str = ""
    locked: bool = False
    used: bool = False

    def matches(self, point: Point, protocol: Protocol, seed: int) -> bool:
        """Says whether all conditions hold for a cell, and remembers that."""
        for key, wanted in self.where.items():
            axis, _, name = key.partition(".")
            having = [seed] if axis == "seed" else point.values.get(key, ())
            if axis == "protocol":
                given = point.entries["aggregator"].settings.get(("protocol", name))
                having = [given.value if given else getattr(protocol, name, None)]
            if not any(same(value, each) for value in _listed(wanted) for each in having):
                return False
            if self.locked and point.labels[key] != wanted:
                return False
        self.used = True
        return True

    def apply(self, point: Point, tuned: Settings) -> list[Problem]:
        """Adds the values of a `tuned` rule to those of earlier rules, for a cell that it matches.

        Returns what is wrong: keys that the cell does not have, or that its entry sets, since the label of the entry,
        such as `sum[lambda_s=0.2]`, would then be wrong.
        """
        aggregator = point.entries["aggregator"]
        problems = []
        for key, value in self.values.items() if not aggregator.broken else ():
            setting = Setting(value, (*self.path, "set", key))
            hint = "narrow the rule's `where`, or correct the key"
            try:
                target, name = route(key, aggregator.fields)
                entry = aggregator if target == "protocol" else point.entries[target]
                searched = {"protocol": search_space(Protocol), "aggregator": aggregator.tunable}.get(target, ())
                if self.locked and name not in searched:
                    hint = "of an older lock file copy `where` and `set` into `tuned:` of your suite, without `study`"
                    raise ValueError(f"{key!r} is nothing that tuning searches, so no study found its value")
                if given := entry.settings.get((target, name)):
                    place = ".".join(map(str, given.path))
                    raise ValueError(f"{key!r} would override what {entry.label!r} is given as {place}")
                tuned[target, name] = setting
            except ValueError as error:
                message = f"{error} (the rule applies to aggregator {aggregator.label!r})"
                problems.append(Problem(message, setting.path, hint, True, "rules"))
        return problems

    def condition_problems(self, entries: Entries) -> list[Problem]:
        """Returns the conditions on an axis that does not exist, or a parameter that no entry of the axis has."""
        names = {"protocol": {*Protocol.model_fields}, "partition": {*Partition.short_forms, *Partition.model_fields}}
        names |= {str(axis): {name for entry in own for name in entry.fields} for axis, own in entries.items()}
        broken = {axis for axis, own in entries.items() for entry in own if entry.broken}
        problems = []
        for key in self.where:
            head, dot, _ = key.partition(".")
            legal = {f"{head}.{name}" for name in names.get(head, ())} if dot else {*AXES, "seed"}
            if key not in legal and head not in broken:
                where = (*self.path, key) if self.because else (*self.path, "where", key)
                message = f"unknown condition {key!r}{nearest(key, legal or names)}"
                problems.append(Problem(message, where, None, True, "rules"))
        return problems

    def unused_problem(self, points: Sequence[Point], what: str | None = None) -> Problem:
        """Returns the problem of a rule that matches no cell, with those of its words that name no entry.

        `what` is the subject of the message, in place of the rule's path.
        """
        details = self._strange(points)
        reason = f": {'; '.join(sorted(details))}" if details else ""
        message = f"{what or '.'.join(map(str, self.path))} matches no cell{reason}"
        return Problem(message, self.path, "remove it, or correct its conditions", check="rules")

    def strange_problem(self, points: Sequence[Point]) -> Problem | None:
        """Returns the problem of a rule that matches cells, with its words that name no entry; `None` without one."""
        details = sorted(self._strange(points))
        message = f"{'.'.join(map(str, self.path))}: {'; '.join(details)}"
        return Problem(message, self.path, "remove it, or correct it", check="rules") if details else None

    def _strange(self, points: Sequence[Point]) -> list[str]:
        details = []
        for key in self.where.keys() & set(AXES):
            legal = {name for point in points for name in point.values[key]}
            strange = [str(value) for value in _listed(self.where[key]) if str(value) not in legal]
            details += [f"the grid has no {key} {value!r}{nearest(value, legal)}" for value in strange]
        return details


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def read_rules(suite: Suite) -> list[Rule]:
    """Returns the `tuned` and the `exclude` rules of a suite."""
    rules = [
        Rule(("tuned", i), rule.where, rule.set, locked=rule.study is not None) for i, rule in enumerate(suite.tuned)
    ]
    return rules + [Rule(("exclude", i), rule.where, because=rule.because) for i, rule in enumerate(suite.exclude)]
