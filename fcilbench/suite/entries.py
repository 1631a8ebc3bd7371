"""The plugin entries of a grid: looked up, labelled, their options assigned to plugin and protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fcilbench.errors import UsageError
from fcilbench.registry import catalog
from fcilbench.registry.entrypoints import PluginRef, lookup
from fcilbench.registry.records import Unresolved, Use
from fcilbench.suite.forms import DatasetEntry, PluginEntry
from fcilbench.suite.keys import Setting, route
from fcilbench.suite.labels import assign_labels
from fcilbench.suite.parse import Node, Path, locate
from fcilbench.suite.problems import Problem
from fcilbench.suite.schema import PLUGIN_KINDS, PluginAxis


@dataclass
class Entry:
    """One plugin entry of an axis.

    Attributes:
        axis: Its axis.
        index: Its place on the axis.
        written: As the suite writes it.
        ref: The plugin.
        label: What boards and filters call it.
        options: Parameters of the plugin.
        protocol: Protocol fields that an aggregator's entry sets.
        broken: Why the plugin cannot be imported, or `None`.
        fields: Names of the plugin's parameters (aggregators only).
        params: Resolved parameters of the entry itself, without `tuned` rules; what is written if they are invalid.
    """

    axis: PluginAxis
    index: int
    written: PluginEntry
    ref: PluginRef
    label: str = ""
    options: dict[str, Setting] = field(default_factory=dict)
    protocol: dict[str, Setting] = field(default_factory=dict)
    broken: str | None = None
    fields: tuple[str, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Path of the entry in the suite."""
        return ("grid", self.axis, self.index)

    @property
    def names(self) -> frozenset[str]:
        """All names by which a rule may refer to it."""
        return frozenset({self.label, self.written.use, self.ref.short, self.ref.name})

    @property
    def tasks(self) -> int | list[int] | None:
        """The split into tasks that a data set's entry asks for."""
        return self.written.tasks if isinstance(self.written, DatasetEntry) else None


Entries = dict[PluginAxis, list[Entry]]


def read_entries(
    written: Mapping[PluginAxis, Sequence[tuple[int, PluginEntry]]], tree: Node
) -> tuple[Entries, list[Problem]]:
    """Looks plugins up and assigns their options.

    Args:
        written: Entries by axis, with their index.
        tree: The suite with its positions.

    Returns:
        The entries whose plugin exists, and what is wrong with the others.
    """
    entries: Entries = {axis: [] for axis in PLUGIN_KINDS}
    problems: list[Problem] = []
    for axis, kind in PLUGIN_KINDS.items():
        for index, entry in written.get(axis, ()):
            try:
                entries[axis].append(Entry(axis, index, entry, lookup(kind, entry.use)))
            except UsageError as error:
                where = locate(tree, ("grid", axis, index, "use"))
                problems.append(Problem(error.message, where, error.hint, check="plugins"))
        problems += assign_labels(entries[axis], tree)
    problems += _assign_options(entries, tree)
    _resolve_alone(entries)
    return entries, problems


def option_problems(found: Unresolved, entry: Entry, settings: Mapping[str, Setting], tree: Node) -> list[Problem]:
    """Places the problems of a plugin's options in the suite.

    Args:
        found: What the registry says.
        entry: Whose options they are.
        settings: The options with their paths.
        tree: The suite with its positions.
    """
    problems = []
    for problem in found.problems:
        setting = settings.get(str(problem.loc[0])) if problem.loc else None
        path = (*setting.path, *problem.loc[1:]) if setting else entry.path
        key = problem.message.startswith("unknown key") and len(problem.loc) == 1
        message = f"{entry.axis} {entry.label!r}: {problem.message}"
        problems.append(Problem(message, locate(tree, path, key=key), problem.hint, check="params"))
    return problems


def salvage(tree: Node) -> list[Problem]:
    """Returns what is wrong with the plugin entries of a suite whose structure is invalid elsewhere."""
    written: dict[PluginAxis, list[tuple[int, PluginEntry]]] = {}
    nameless = False
    grid = tree.child("grid")
    for axis in PLUGIN_KINDS:
        nodes = grid.child(axis) if grid else None
        for index, node in enumerate(nodes.value if nodes and isinstance(nodes.value, list) else []):
            raw = node.plain()
            raw = {"use": raw} if isinstance(raw, str) else raw
            if isinstance(raw, dict) and isinstance(raw.get("use"), str) and raw["use"]:
                form = DatasetEntry if axis == "dataset" else PluginEntry
                try:
                    entry = form.model_validate(raw)
                except ValidationError:  # reported already
                    nameless = True
                    entry = form.model_validate({k: v for k, v in raw.items() if k not in ("label", "tasks")})
                written.setdefault(axis, []).append((index, entry))
    with catalog.session():
        entries, problems = read_entries(written, tree)
        problems += check_alone(entries, tree)
    # An entry that lost its own label may be called like another one.
    return [problem for problem in problems if not (nameless and problem.check == "cells")]


def check_alone(entries: Entries, tree: Node) -> list[Problem]:
    """Returns what is wrong with the options of each entry as it stands.

    A missing value is not reported, since a `tuned` rule may give it.
    """
    usable = [entry for each in entries.values() for entry in each if entry.broken is None]
    found = catalog.resolve([use_of(entry, entry.options) for entry in usable])
    problems = []
    for entry, answer in zip(usable, found, strict=True):
        if isinstance(answer, Unresolved) and not answer.prerequisite:
            placed = option_problems(answer, entry, entry.options, tree)
            problems += [problem for problem in placed if "missing key" not in problem.message]
    return problems


def use_of(entry: Entry, settings: Mapping[str, Setting]) -> Use:
    """Returns the question to the registry for an entry with these options."""
    return Use(entry.ref, {name: setting.value for name, setting in settings.items()})


def _assign_options(entries: Entries, tree: Node) -> list[Problem]:
    """Sorts the written options into those of the plugin and, for aggregators, those of the protocol."""
    for entry in (entry for axis in entries if axis != "aggregator" for entry in entries[axis]):
        entry.options = {key: Setting(value, (*entry.path, key)) for key, value in entry.written.options.items()}
    aggregators = entries["aggregator"]
    descriptions = catalog.describe([entry.ref for entry in aggregators])
    problems = []
    for entry, description in zip(aggregators, descriptions, strict=True):
        entry.broken, entry.fields = description.problem, description.field_names
        for key, value in entry.written.options.items() if entry.broken is None else ():
            path = (*entry.path, key)
            try:
                target, name = route(key, entry.fields)
                if target not in ("aggregator", "protocol"):
                    raise ValueError(f"an aggregator's entry cannot set {key!r}")
            except ValueError as error:
                message = f"aggregator {entry.label!r}: {error}"
                problems.append(Problem(message, locate(tree, path, key=True), check="params"))
                continue
            chosen = entry.options if target == "aggregator" else entry.protocol
            chosen[name] = Setting(value, path)
    return problems


def _resolve_alone(entries: Entries) -> None:
    """Finds the parameters of each entry as it stands, for conditions on parameters."""
    everything = [entry for axis in entries.values() for entry in axis if entry.broken is None]
    found = catalog.resolve([use_of(entry, entry.options) for entry in everything])
    for entry, answer in zip(everything, found, strict=True):
        written = {name: setting.value for name, setting in entry.options.items()}
        entry.params = written if isinstance(answer, Unresolved) else answer.params
