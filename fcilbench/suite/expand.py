"""From a suite to its cells: the product of the axes, the rules, and every parameter resolved."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fcilbench.errors import UsageError
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Resolved, Unresolved
from fcilbench.registry.entrypoints import lookup
from fcilbench.registry.validation import explain, validate
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.identity import cell_id
from fcilbench.spec.protocol import Limits, Protocol, Seeds
from fcilbench.suite.load import LoadedSuite
from fcilbench.suite.resolve import (
    Entries,
    Entry,
    Point,
    Rule,
    Setting,
    Settings,
    Target,
    apply_rule,
    condition_findings,
    option_findings,
    read_entries,
    read_rules,
    resolve,
    unused_finding,
)
from fcilbench.suite.schema import AXES, PLUGIN_KINDS, Axis, Grid, Suite
from fcilbench.suite.yaml import Finding, InvalidSuiteError, Problem, place

MAX_CELLS = 10_000
"""Most cells of one suite."""


@dataclass
class Expansion:
    """The cells of a suite.

    Attributes:
        name: Name of the suite.
        cells: In the order of the grid (data set, backbone, partition, aggregator, stress), seeds innermost.
        excluded: Coordinates of the cells that an `exclude` rule takes out, each with its reason.
        prerequisites: What is missing on this machine, one line each; the cells that need it cannot be identified.
        blocked: Number of cells that miss a prerequisite; they are not among `cells`.
        axes: Number of entries of each axis, `seed` last.
        facts: What the entries' plugins declare, and their full names as `plugin`, by `<axis>:<label>`.
        unused: `tuned` and `exclude` rules that match no cell.
    """

    name: str
    cells: list[Cell] = field(default_factory=list)
    excluded: list[tuple[dict[str, str | int], str]] = field(default_factory=list)
    prerequisites: list[str] = field(default_factory=list)
    blocked: int = 0
    axes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    unused: list[Problem] = field(default_factory=list)


def expand(loaded: LoadedSuite) -> Expansion:
    """Expands a suite to its cells.

    Plugins are imported in another process, and only if the registry's cache does not know them with these options.

    Raises:
        InvalidSuiteError: If plugins, their parameters, splits, rules or boards are wrong, or two cells are the same.
    """
    suite, layers = loaded.suite, loaded.layers
    with catalog.session():
        entries, findings = read_entries(suite.grid)
        findings += _grid_findings(suite)
        if findings:
            raise InvalidSuiteError(place(layers, findings), ran=("parse", "schema", "plugins"))
        rules = read_rules(suite)
        findings = [each for rule in rules for each in condition_findings(rule, entries)]
        if findings:
            raise InvalidSuiteError(place(layers, findings), ran=("parse", "schema", "plugins"))
        builder = _Builder(suite)
        builder.build(entries, rules)
    expansion = builder.expansion
    # All seeds of two points are equal if the first ones are, but for rules that look at the seed.
    seeds = suite.seeds.count if any("seed" in rule.where for rule in rules) else 1
    findings = builder.findings or _duplicates(expansion.cells, builder.points, seeds)
    if findings:
        raise InvalidSuiteError(place(layers, findings), ran=("parse", "schema", "plugins", "params", "tasks"))
    unused = [rule for rule in rules if not rule.used and not loaded.inherited(rule.path)]
    expansion.unused = place(layers, [unused_finding(rule, entries, suite.grid.partition) for rule in unused])
    missing = (f"{each} ({each.hint})" if each.hint else str(each) for each in place(layers, builder.missing))
    expansion.prerequisites = list(dict.fromkeys(missing))
    expansion.axes = {**{axis: len(getattr(suite.grid, axis)) for axis in AXES}, "seed": suite.seeds.count}
    return expansion


def key_of(*parts: Any) -> str:
    """Returns a dictionary key for JSON-compatible values."""
    return json.dumps(parts, sort_keys=True, default=str)


def points_of(grid: Grid, entries: Entries) -> Iterator[Point]:
    """Yields the points of the grid: the product in the order of `AXES`; zipped axes advance together."""
    for steps in itertools.product(*_steps(grid)):
        index = {axis: i for step in steps for axis, i in step.items()}
        chosen = {axis: entries[axis][index[axis]] for axis in PLUGIN_KINDS}
        yield Point(chosen, grid.partition[index["partition"]])


def _steps(grid: Grid) -> list[list[dict[Axis, int]]]:
    """Returns the steps of the axes that advance alone, and of the zipped ones where the first of them stands."""
    zipped = [axis for axis in AXES if axis in grid.zip]
    groups = [zipped if axis in zipped else [axis] for axis in AXES if axis not in zipped[1:]]
    return [[dict.fromkeys(group, i) for i in range(len(getattr(grid, group[0])))] for group in groups]


def split_classes(tasks: int | list[int] | None, classes: int, default: int | list[int]) -> tuple[int, ...]:
    """Returns the number of classes of each task.

    Args:
        tasks: Number of equal tasks, or classes of each task; `None` takes the data set's default.
        classes: Classes of the data set.
        default: Its default split.

    Raises:
        ValueError: If the split does not use every class exactly once; it proposes one that does.

    Example:
        >>> split_classes(5, 10, 2)
        (2, 2, 2, 2, 2)
    """
    wanted = default if tasks is None else tasks
    if isinstance(wanted, list):
        if sum(wanted) != classes:
            raise ValueError(f"tasks {wanted} hold {sum(wanted)} classes, the data set has {classes}")
        return tuple(wanted)
    if wanted > classes:
        raise ValueError(f"{wanted} tasks are more than the data set's {classes} classes")
    if classes % wanted:
        size, larger = divmod(classes, wanted)
        proposal = [size + 1] * larger + [size] * (wanted - larger)
        raise ValueError(f"{classes} classes do not split into {wanted} equal tasks; list them: tasks: {proposal}")
    return (classes // wanted,) * wanted


def _grid_findings(suite: Suite) -> list[Finding]:
    """Returns boards that do not exist, zipped axes that do not fit, partitions named alike, too many cells."""
    grid, findings = suite.grid, []
    for index, name in enumerate(suite.boards):
        try:
            lookup("boards", name)
        except UsageError as error:
            findings.append(Finding(error.message, ("boards", index), hint=error.hint, check="plugins"))
    sizes = {axis: len(getattr(grid, axis)) for axis in grid.zip}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        message = f"zipped axes must have equally many entries: {shown}"
        findings.append(Finding(message, ("grid", "zip"), check="cells"))
    labels = [partition.label for partition in grid.partition]
    for index, label in enumerate(labels):
        first = labels.index(label)
        if first != index:
            message = f"grid.partition.{index} and grid.partition.{first} are both {label!r}"
            findings.append(Finding(message, ("grid", "partition", index), check="cells"))
    number = math.prod(map(len, _steps(grid))) * suite.seeds.count
    if number > MAX_CELLS:
        message = f"the grid has {number:,} cells, more than {MAX_CELLS:,}"
        findings.append(Finding(message, ("grid",), True, "make several suites of it", "cells"))
    return findings


class _Builder:
    """Builds the cells; every distinct plugin with its options, protocol and split is resolved once.

    Attributes:
        expansion: The cells so far.
        points: The point of the grid of each cell.
        findings: What is wrong with the suite.
        missing: What is not on this machine.
    """

    def __init__(self, suite: Suite) -> None:
        self.expansion = Expansion(suite.name)
        self.points: list[Point] = []
        self.findings: list[Finding] = []
        self.missing: list[Finding] = []
        self._suite = suite
        self._limits = Limits(wall_seconds=suite.limits.wall, retries=suite.limits.retries)
        self._uses: dict[str, PluginUse | None] = {}
        self._protocols: dict[str, Protocol | None] = {}
        self._splits: dict[str, tuple[tuple[int, ...], str]] = {}  # tasks and fingerprint of a data set

    def build(self, entries: Entries, rules: list[Rule]) -> None:
        """Iterates over the grid: excluded cells are noted with their reason, the others are built."""
        for point in points_of(self._suite.grid, entries):
            for seed in range(self._suite.seeds.count):
                hits = [rule for rule in rules if rule.because and rule.matches(point, self._suite.protocol, seed)]
                if hits:
                    self.expansion.excluded.append(({**point.labels, "seed": seed}, hits[0].because))
                    continue
                settings: dict[Target, dict[str, Setting]] = defaultdict(dict)
                for rule in rules:
                    if not rule.because and rule.matches(point, self._suite.protocol, seed):
                        self.findings += apply_rule(rule, point, settings)
                self._add(point, seed, settings)

    def _add(self, point: Point, seed: int, tuned: Mapping[Target, Settings]) -> None:
        keys = {axis: self._use(entry, tuned.get(axis, {})) for axis, entry in point.entries.items()}
        uses = {str(axis): use for axis, key in keys.items() if (use := self._uses[key]) is not None}
        protocol = self._protocol({**point.entries["aggregator"].protocol, **tuned.get("protocol", {})})
        if len(uses) < len(keys) or protocol is None or keys["dataset"] not in self._splits:
            self.expansion.blocked += 1
            return
        tasks, fingerprint = self._splits[keys["dataset"]]
        self._check_samples(point, len(tasks), protocol.clients)
        seeds = self._suite.seeds
        cell = Cell(
            suite=self._suite.name,
            protocol=protocol,
            tasks=tasks,
            data_fingerprint=fingerprint,
            partition=point.partition,
            seeds=Seeds(base=seeds.base, index=seed, vary=tuple(seeds.vary)),
            evaluate=self._suite.evaluate,
            runtime=self._suite.runtime,
            limits=self._limits,
            **uses,
        )
        self.expansion.cells.append(cell)
        self.points.append(point)

    def _check_samples(self, point: Point, tasks: int, clients: int) -> None:
        """Notes a data set whose declared samples cannot give each client its least number of each task."""
        data, least = point.entries["dataset"], point.partition.min_samples
        samples = self.expansion.facts[f"dataset:{data.label}"].get("train")
        if samples is not None and samples < tasks * clients * least:
            message = f"dataset {data.label!r}: {samples} samples do not give {clients} clients {least} of each task"
            finding = Finding(message, data.path, hint="lower clients, tasks or min_samples", check="tasks")
            if finding not in self.findings:
                self.findings.append(finding)

    def _protocol(self, settings: Settings) -> Protocol | None:
        values = {name: setting.value for name, setting in settings.items()}
        key = key_of(values)
        if key not in self._protocols:
            self._protocols[key] = None
            try:
                base = self._suite.protocol.model_dump(mode="json")
                self._protocols[key] = validate(Protocol, {**base, **values})
            except ValidationError as error:
                for problem in explain(error, Protocol.model_fields):
                    path = settings[str(problem.loc[0])].path
                    self.findings.append(Finding(f"protocol.{problem.message}", path, check="params"))
        return self._protocols[key]

    def _use(self, entry: Entry, tuned: Settings) -> str:
        """Returns the key of what a cell carries of a plugin: `None` under it means that it cannot be used."""
        key = key_of(entry.path, {name: setting.value for name, setting in tuned.items()})
        if key in self._uses:
            return key
        settings = {**entry.options, **tuned}
        answer = resolve([(entry, settings)])[0] if tuned else entry.answer
        self._uses[key] = None
        if isinstance(answer, Resolved):
            self._uses[key] = PluginUse(
                name=entry.ref.name,
                label=entry.label,
                version=answer.version,
                params=answer.params,
                identity=answer.identity,
                code_digest=answer.code_digest,
            )
            self.expansion.facts[f"{entry.axis}:{entry.label}"] = {**answer.facts, "plugin": entry.ref.name}
            if entry.axis == "dataset":
                self._split(key, entry, answer.facts)
        elif isinstance(answer, Unresolved) and answer.prerequisite:
            self.missing += [Finding(each.message, entry.path, hint=each.hint) for each in answer.problems]
        elif isinstance(answer, Unresolved):
            self.findings += option_findings(entry, settings, answer)
        return key

    def _split(self, key: str, entry: Entry, facts: Mapping[str, Any]) -> None:
        tasks = getattr(entry.written, "tasks", None)
        try:
            split = split_classes(tasks, int(facts["classes"]), facts["default_tasks"])
            self._splits[key] = split, str(facts.get("fingerprint", ""))
        except ValueError as error:
            self.findings.append(Finding(f"dataset {entry.label!r}: {error}", (*entry.path, "tasks"), check="tasks"))
        except KeyError as error:
            self.missing.append(Finding(f"{entry.ref.name} does not declare the fact {error}", entry.path))


def _duplicates(cells: list[Cell], points: list[Point], seeds: int) -> list[Finding]:
    """Returns pairs of grid entries that lead to one and the same experiment with one of the first seeds."""
    first: dict[str, Point] = {}
    findings = []
    hint = "remove one of them; labels do not make a difference"
    for cell, point in zip(cells, points, strict=True):
        same = first.setdefault(cell_id(cell), point) if cell.seeds.index < seeds else point
        for axis, one in point.entries.items():
            two = same.entries[axis]
            if one is not two:
                message = f"{axis} {one.label!r} is the same experiment as {axis} {two.label!r}"
                findings.append(Finding(message, one.path, hint=hint, check="cells"))
    return findings
