"""From a suite to its cells: the product of the axes, the rules, and every parameter resolved."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fcilbench.errors import UsageError
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Resolved
from fcilbench.registry.entrypoints import lookup
from fcilbench.registry.validation import explain, validate
from fcilbench.spec.cell import PLUGIN_KINDS, Cell
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
    read_entries,
    read_rules,
    unused_finding,
)
from fcilbench.suite.schema import AXES, Axis, Grid, Suite
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
    ran = ("parse", "schema", "plugins")
    with catalog.session():
        entries, findings = read_entries(suite.grid)
        findings += _grid_findings(suite)
        rules = read_rules(suite)
        findings = findings or [each for rule in rules for each in condition_findings(rule, entries)]
        if findings:
            raise InvalidSuiteError(place(layers, findings), ran)
        builder = _Builder(suite)
        builder.build(entries, rules)
    expansion = builder.expansion
    # All seeds of two points are equal if the first ones are, but for rules that look at the seed.
    seeds = suite.seeds.count if any("seed" in rule.where for rule in rules) else 1
    findings = builder.findings or _duplicates(expansion.cells, builder.points, seeds)
    if findings:
        raise InvalidSuiteError(place(layers, findings), (*ran, "params", "tasks"))
    unused = [rule for rule in rules if not rule.used and not loaded.inherited(rule.path)]
    points = list(points_of(suite.grid, entries)) if unused else []
    expansion.unused = place(layers, [unused_finding(rule, points) for rule in unused])
    missing = (f"{each} ({each.hint})" if each.hint else str(each) for each in place(layers, builder.missing))
    expansion.prerequisites = list(dict.fromkeys(missing))
    expansion.axes = {**{axis: len(getattr(suite.grid, axis)) for axis in AXES}, "seed": suite.seeds.count}
    return expansion


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
    """Builds the cells.

    Attributes:
        expansion: The cells so far.
        points: The point of the grid of each cell.
        findings: What is wrong with the suite; several cells may find the same.
        missing: What is not on this machine.
    """

    def __init__(self, suite: Suite) -> None:
        self.expansion = Expansion(suite.name)
        self.points: list[Point] = []
        self.findings: list[Finding] = []
        self.missing: list[Finding] = []
        self._suite = suite
        self._lock = suite.lock_digest
        self._limits = Limits(wall_seconds=suite.limits.wall, retries=suite.limits.retries)
        self._protocols: dict[str, Protocol | None] = {}

    def build(self, entries: Entries, rules: list[Rule]) -> None:
        """Iterates over the grid: excluded cells are noted with their reason, the others are built."""
        for point in points_of(self._suite.grid, entries):
            for seed in range(self._suite.seeds.count):
                hits = [rule for rule in rules if rule.because and rule.matches(point, self._suite.protocol, seed)]
                if hits:
                    self.expansion.excluded.append(({**point.labels, "seed": seed}, hits[0].because))
                    continue
                tuned: dict[Target, dict[str, Setting]] = defaultdict(dict)
                locked = False
                for rule in rules:
                    if not rule.because and rule.matches(point, self._suite.protocol, seed):
                        self.findings += apply_rule(rule, point, tuned)
                        locked = locked or rule.locked
                self._add(point, seed, tuned, self._lock if locked else None)

    def _add(self, point: Point, seed: int, tuned: Mapping[Target, Settings], lock: str | None) -> None:
        """Adds a cell, unless something is wrong with its plugins, protocol or tasks."""
        answers = {axis: self._resolve(entry, tuned.get(axis, {})) for axis, entry in point.entries.items()}
        protocol = self._protocol({**point.entries["aggregator"].protocol, **tuned.get("protocol", {})})
        data = answers["dataset"]
        tasks = self._split(point.entries["dataset"], data.facts) if data else None
        if protocol is None or tasks is None or data is None or None in answers.values():
            self.expansion.blocked += 1
            return
        self._check_samples(point, len(tasks) * protocol.clients, data.facts.get("train"))
        uses = {
            str(axis): entry.use(tuned.get(axis, {}), answer)
            for axis, entry in point.entries.items()
            if (answer := answers[axis]) is not None
        }
        seeds = self._suite.seeds
        cell = Cell(
            suite=self._suite.name,
            protocol=protocol,
            tasks=tasks,
            data_fingerprint=str(data.facts.get("fingerprint", "")),
            partition=point.partition,
            seeds=Seeds(base=seeds.base, index=seed, vary=tuple(seeds.vary)),
            evaluate=self._suite.evaluate,
            runtime=self._suite.runtime,
            limits=self._limits,
            tuned_from=lock,
            **uses,
        )
        self.expansion.cells.append(cell)
        self.points.append(point)

    def _resolve(self, entry: Entry, tuned: Settings) -> Resolved | None:
        answer = entry.resolve(tuned)
        if isinstance(answer, Resolved):
            name = f"{entry.axis}:{entry.label}"
            if name not in self.expansion.facts:
                self.expansion.facts[name] = {**answer.facts, "plugin": entry.ref.name}
            return answer
        (self.missing if answer.prerequisite else self.findings).extend(entry.findings(tuned, answer))
        return None

    def _check_samples(self, point: Point, shares: int, samples: int | None) -> None:
        """Notes a data set whose declared samples cannot give each client its least number of each task."""
        data, least = point.entries["dataset"], point.partition.min_samples
        if samples is not None and samples < shares * least:
            message = f"dataset {data.label!r}: {samples} samples do not give each client {least} of each task"
            self.findings.append(Finding(message, data.path, hint="lower clients, tasks or min_samples", check="tasks"))

    def _protocol(self, settings: Settings) -> Protocol | None:
        values = {name: setting.value for name, setting in settings.items()}
        key = repr(sorted(values.items()))
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

    def _split(self, entry: Entry, facts: Mapping[str, Any]) -> tuple[int, ...] | None:
        tasks = getattr(entry.written, "tasks", None)
        try:
            return split_classes(tasks, int(facts["classes"]), facts["default_tasks"])
        except ValueError as error:
            self.findings.append(Finding(f"dataset {entry.label!r}: {error}", (*entry.path, "tasks"), check="tasks"))
        except KeyError as error:
            self.missing.append(Finding(f"{entry.ref.name} does not declare the fact {error}", entry.path))
        return None


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
