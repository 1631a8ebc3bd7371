"""The plugins of a grid: looked up, labelled, their options sorted and resolved through the registry."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fcilbench.errors import UsageError, nearest
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Resolved, Unresolved, Use
from fcilbench.registry.entrypoints import PluginRef, lookup
from fcilbench.spec.protocol import Protocol
from fcilbench.suite.schema import PLUGIN_KINDS, Grid, PluginAxis, PluginEntry
from fcilbench.suite.yaml import Finding, KeyPath, one_line


@dataclass(frozen=True)
class Setting:
    """A value that a suite gives to a parameter, with its path in the suite."""

    value: Any
    path: KeyPath


Settings = Mapping[str, Setting]


@dataclass
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
        answer: What the registry says of these options; `tuned` rules may add others.
    """

    axis: PluginAxis
    path: KeyPath
    written: PluginEntry
    ref: PluginRef
    label: str = ""
    fields: tuple[str, ...] = ()
    broken: bool = False
    options: dict[str, Setting] = field(default_factory=dict)
    protocol: dict[str, Setting] = field(default_factory=dict)
    answer: Resolved | Unresolved | None = None

    @property
    def names(self) -> frozenset[str]:
        """All names by which a rule may refer to it."""
        return frozenset({self.label, self.written.use, self.ref.short, self.ref.name})

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters without `tuned` rules: resolved if they are valid, else as they are written."""
        if isinstance(self.answer, Resolved):
            return self.answer.params
        return {name: setting.value for name, setting in self.options.items()}


Entries = dict[PluginAxis, list[Entry]]


def read_entries(grid: Grid) -> tuple[Entries, list[Finding]]:
    """Looks plugins up, labels the entries, sorts their options and resolves them.

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
    with catalog.session():
        for entry, description in zip(everything, catalog.describe([each.ref for each in everything]), strict=True):
            entry.fields, entry.broken = description.field_names, description.problem is not None
            findings += _sort_options(entry)
        for entry, answer in zip(everything, resolve((each, each.options) for each in everything), strict=True):
            entry.answer = answer
    return entries, findings


def resolve(uses: Iterable[tuple[Entry, Settings]]) -> list[Resolved | Unresolved]:
    """Asks the registry for entries with these options."""
    options = ((entry.ref, {name: each.value for name, each in settings.items()}) for entry, settings in uses)
    return catalog.resolve([Use(ref, values) for ref, values in options])


def option_findings(entry: Entry, settings: Settings, answer: Unresolved) -> list[Finding]:
    """Returns what the registry finds wrong with these options."""
    findings = []
    for problem in answer.problems:
        setting = settings.get(str(problem.loc[0])) if problem.loc else None
        path = (*setting.path, *problem.loc[1:]) if setting else entry.path
        key = problem.message.startswith("unknown key") and len(problem.loc) == 1
        message = f"{entry.axis} {entry.label!r}: {problem.message}"
        findings.append(Finding(message, path, key, problem.hint, "params"))
    return findings


Target = PluginAxis | Literal["protocol"]
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
