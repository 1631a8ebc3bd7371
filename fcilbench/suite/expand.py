"""From a suite to its cells: the product of the axes, the rules, and every parameter resolved."""

from __future__ import annotations

import itertools
import json
import math
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
from fcilbench.spec.protocol import Protocol, Seeds
from fcilbench.suite.load import LoadedSuite
from fcilbench.suite.problems import Finding, Problem
from fcilbench.suite.resolve import Entries, Entry, Settings, alone_findings, option_findings, read_entries, resolve
from fcilbench.suite.rules import Point, Rule, Tuned, apply_rule, condition_findings, read_rules, unused_finding
from fcilbench.suite.schema import AXES, PLUGIN_KINDS, Axis, Grid, PluginAxis, Suite

MAX_CELLS = 20_000
"""Most cells of one suite."""


@dataclass(frozen=True)
class Expansion:
    """The cells of a suite.

    Attributes:
        name: Name of the suite.
        cells: In the order of the grid (data set, backbone, partition, aggregator, stress), seeds innermost.
        excluded: Coordinates of the cells that an `exclude` rule takes out, each with its reason.
        prerequisites: What is missing on this machine, one line each; the cells that need it cannot be identified.
        blocked: Number of cells that miss a prerequisite; they are not among `cells`.
        axes: Number of entries of each axis, `seed` last.
        facts: What the plugins in use declare, by `<axis>:<full name>`, e.g. `dataset:fcilbench/digits`.
        flops: Operations of one input's forward pass, of the backbones that tell it, by `key_of(name, identity)`.
        unused: `tuned` and `exclude` rules that match no cell.
    """

    name: str
    cells: list[Cell]
    excluded: list[tuple[dict[str, str | int], str]] = field(default_factory=list)
    prerequisites: list[str] = field(default_factory=list)
    blocked: int = 0
    axes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    flops: dict[str, float] = field(default_factory=dict)
    unused: list[Problem] = field(default_factory=list)


def expand(loaded: LoadedSuite) -> Expansion:
    """Expands a suite to its cells.

    Plugins are imported in a child process, and only if the registry's cache does not know them with these options.

    Args:
        loaded: From `load_suite`.

    Raises:
        InvalidSuiteError: If plugins, their parameters, splits, rules or boards are wrong, or two cells are the same.
    """
    suite = loaded.suite
    written = {axis: list(enumerate(getattr(suite.grid, axis))) for axis in PLUGIN_KINDS}
    with catalog.session():
        entries, findings = read_entries(written)
        tuned, exclude = read_rules(suite)
        known = {axis: found for axis, found in entries.items() if len(found) == len(written[axis])}
        findings += _grid_findings(suite)
        findings += [each for rule in [*tuned, *exclude] for each in condition_findings(rule, known)]
        if findings:
            raise loaded.invalid([*findings, *alone_findings(entries)], ran=("parse", "schema", "plugins"))
        builder = _Builder(suite, entries, tuned)
        excluded = _lay_out(suite, entries, exclude, builder)
        builder.resolve()
    ran = ("parse", "schema", "plugins", "params", "tasks")
    if builder.findings:
        raise loaded.invalid(builder.findings, ran)
    cells, points = builder.cells()
    findings = _duplicates(cells, points)
    if findings:
        raise loaded.invalid(findings, ran)
    partitions = {name for each in suite.grid.partition for name in (each.label, each.kind)}
    unused = [rule for rule in [*tuned, *exclude] if not rule.used and not loaded.inherited(rule.path)]
    missing = map(loaded.place, builder.missing)
    return Expansion(
        name=suite.name,
        cells=cells,
        excluded=excluded,
        prerequisites=list(dict.fromkeys(f"{each} ({each.hint})" if each.hint else str(each) for each in missing)),
        blocked=builder.blocked,
        axes={**{axis: len(getattr(suite.grid, axis)) for axis in AXES}, "seed": suite.seeds.count},
        facts=builder.facts,
        flops=builder.flops,
        unused=[loaded.place(unused_finding(rule, entries, partitions)) for rule in unused],
    )


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
    if grid.zip and (len(sizes) != len(grid.zip) or len(sizes) < 2):
        findings.append(Finding("grid.zip needs two or more different axes", ("grid", "zip"), check="cells"))
    elif len(set(sizes.values())) > 1:
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
        path = ("seeds", "count") if suite.seeds.count > MAX_CELLS else ("grid",)
        findings.append(Finding(message, path, len(path) == 1, "make several suites of it", "cells"))
    return findings


def _lay_out(
    suite: Suite, entries: Entries, exclude: list[Rule], builder: _Builder
) -> list[tuple[dict[str, str | int], str]]:
    """Iterates over the grid, adds the included cells to the builder and returns the excluded ones."""
    excluded = []
    for point in points_of(suite.grid, entries):
        labels = {axis: entry.label for axis, entry in point.entries.items()} | {"partition": point.partition.label}
        for seed in range(suite.seeds.count):
            hits = [rule for rule in exclude if rule.matches(point, suite.protocol, seed)]
            if hits:
                coords: dict[str, str | int] = {axis: labels[axis] for axis in AXES}
                excluded.append(({**coords, "seed": seed}, hits[0].because))
            else:
                builder.add(point, seed)
    return excluded


@dataclass
class _Draft:
    """A grid cell whose plugins are not resolved yet: the keys of its plugin uses and of its protocol."""

    point: Point
    seed: int
    uses: dict[PluginAxis, str]
    protocol: str


class _Builder:
    """Collects what the cells need, resolves every distinct need once, then builds the cells.

    Attributes:
        findings: What is wrong with the suite.
        missing: What is missing on this machine.
        blocked: Number of cells that cannot be built because of that.
        facts: See `Expansion`.
        flops: See `Expansion`.
    """

    def __init__(self, suite: Suite, entries: Entries, tuned: list[Rule]) -> None:
        self.findings: list[Finding] = []
        self.missing: list[Finding] = []
        self.blocked = 0
        self.facts: dict[str, dict[str, Any]] = {}
        self.flops: dict[str, float] = {}
        self._suite, self._entries, self._tuned = suite, entries, tuned
        self._drafts: list[_Draft] = []
        self._uses: dict[str, tuple[Entry, Settings]] = {}
        self._plugins: dict[str, PluginUse] = {}
        self._settings: dict[str, Settings] = {}
        self._protocols: dict[str, Protocol] = {}
        self._tasks: dict[int, tuple[int, ...]] = {}

    def add(self, point: Point, seed: int) -> None:
        """Adds one cell of the grid."""
        tuned = Tuned()
        for rule in self._tuned:
            if rule.matches(point, self._suite.protocol, seed):
                self.findings += apply_rule(rule, point, tuned)
        uses = {axis: self._use(entry, tuned.plugins[axis]) for axis, entry in point.entries.items()}
        settings = {**point.entries["aggregator"].protocol, **tuned.protocol}
        key = key_of({name: setting.value for name, setting in settings.items()})
        self._settings.setdefault(key, settings)
        self._drafts.append(_Draft(point, seed, uses, key))

    def resolve(self) -> None:
        """Resolves plugins, protocols and splits; fills `findings` and `missing`."""
        used = {id(entry) for entry, _ in self._uses.values()}
        for entry in (entry for axis in self._entries.values() for entry in axis if id(entry) not in used):
            self._use(entry, {})  # an entry whose cells are all excluded is still checked
        changed = [(entry, settings) for entry, settings in self._uses.values() if settings != entry.options]
        answers = iter(resolve(changed))
        for key, (entry, settings) in self._uses.items():
            self._take(key, entry, settings, entry.answer if settings == entry.options else next(answers))
        base = self._suite.protocol.model_dump(mode="json")
        for key, settings in self._settings.items():
            try:
                self._protocols[key] = validate(Protocol, {**base, **{name: s.value for name, s in settings.items()}})
            except ValidationError as error:
                for problem in explain(error, Protocol.model_fields):
                    path = settings[str(problem.loc[0])].path
                    self.findings.append(Finding(f"protocol.{problem.message}", path, check="params"))

    def cells(self) -> tuple[list[Cell], list[Point]]:
        """Builds the cells of a suite without problems.

        Returns:
            The cells that can be identified on this machine, and the point of the grid of each.
        """
        suite, limits = self._suite, self._suite.limits.limits()
        cells, points = [], []
        for draft in self._drafts:
            dataset = draft.point.entries["dataset"]
            if dataset.index not in self._tasks or not all(key in self._plugins for key in draft.uses.values()):
                self.blocked += 1
                continue
            cell = Cell(
                suite=suite.name,
                protocol=self._protocols[draft.protocol],
                tasks=self._tasks[dataset.index],
                data_fingerprint=str(self.facts[f"dataset:{dataset.ref.name}"].get("fingerprint", "")),
                partition=draft.point.partition,
                seeds=Seeds(base=suite.seeds.base, index=draft.seed, vary=tuple(suite.seeds.vary)),
                evaluate=suite.evaluate,
                runtime=suite.runtime,
                limits=limits,
                **{str(axis): self._plugins[key] for axis, key in draft.uses.items()},
            )
            cells.append(cell)
            points.append(draft.point)
        return cells, points

    def _use(self, entry: Entry, tuned: Settings) -> str:
        key = key_of(entry.axis, entry.index, {name: setting.value for name, setting in tuned.items()})
        self._uses.setdefault(key, (entry, {**entry.options, **tuned}))
        return key

    def _take(self, key: str, entry: Entry, settings: Settings, answer: Resolved | Unresolved | None) -> None:
        """Takes what the registry says of one plugin with its options."""
        self.findings += option_findings(entry, settings, answer)
        if isinstance(answer, Unresolved) and answer.prerequisite:
            self.missing += [Finding(each.message, entry.path, hint=each.hint) for each in answer.problems]
        if not isinstance(answer, Resolved):
            return
        self._plugins[key] = PluginUse(
            name=entry.ref.name,
            label=entry.label,
            version=answer.version,
            params=answer.params,
            identity=answer.identity,
            code_digest=answer.code_digest,
        )
        self.facts[f"{entry.axis}:{entry.ref.name}"] = answer.facts
        if answer.facts.get("forward_flops") is not None:
            self.flops[key_of(entry.ref.name, answer.identity)] = float(answer.facts["forward_flops"])
        if entry.axis == "dataset" and entry.index not in self._tasks:
            self._split(entry, answer.facts)

    def _split(self, entry: Entry, facts: Mapping[str, Any]) -> None:
        tasks = getattr(entry.written, "tasks", None)
        try:
            self._tasks[entry.index] = split_classes(tasks, int(facts["classes"]), facts["default_tasks"])
        except ValueError as error:
            self.findings.append(Finding(f"dataset {entry.label!r}: {error}", (*entry.path, "tasks"), check="tasks"))
        except KeyError as error:
            self.missing.append(Finding(f"{entry.ref.name} does not declare the fact {error}", entry.path))


def _duplicates(cells: list[Cell], points: list[Point]) -> list[Finding]:
    """Returns pairs of grid entries that lead to one and the same experiment."""
    first: dict[str, int] = {}
    findings: dict[tuple[str, int, int], Finding] = {}
    for number, cell in enumerate(cells):
        other = first.setdefault(cell_id(cell), number)
        for axis, one in points[number].entries.items():
            two = points[other].entries[axis]
            if one is not two:
                message = f"{axis} {one.label!r} is the same experiment as {axis} {two.label!r}"
                hint = "remove one of them; labels do not make a difference"
                found = Finding(message, one.path, hint=hint, check="cells")
                findings.setdefault((axis, one.index, two.index), found)
    return list(findings.values())
