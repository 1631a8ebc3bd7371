"""From a suite to its cells: the product of the axes, the rules, and every parameter resolved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcilbench.registry import catalog
from fcilbench.spec.cell import Cell
from fcilbench.spec.identity import cell_id
from fcilbench.suite.assemble import Assembly
from fcilbench.suite.entries import Entries, check_alone, read_entries
from fcilbench.suite.grid_problems import grid_problems
from fcilbench.suite.load import LoadedSuite, in_order
from fcilbench.suite.parse import locate
from fcilbench.suite.problems import InvalidSuiteError, Problem
from fcilbench.suite.rules import Point, Rule, key_problems, unused_problem
from fcilbench.suite.schema import AXES, PLUGIN_KINDS, Grid


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
        flops: Operations of one input's forward pass, of the backbones that tell it, by `cost.model_key`.
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
        entries, problems = read_entries(written, loaded.tree)
        problems += grid_problems(loaded)
        if problems:
            # Parameters of the sound entries are still checked, so that all that is wrong comes at once.
            problems += check_alone(entries, loaded.tree)
            raise InvalidSuiteError(in_order(problems), ran=("parse", "schema", "plugins"))
        assembly = Assembly(loaded, entries, _tuned_rules(loaded))
        excluded = _lay_out(loaded, entries, assembly, problems)
        assembly.resolve()
    problems += assembly.problems
    ran = ("parse", "schema", "plugins", "params", "tasks")
    if problems:
        raise InvalidSuiteError(in_order(problems), ran)
    cells, points = assembly.cells()
    problems = _duplicates(cells, points, loaded)
    if problems:
        raise InvalidSuiteError(in_order(problems), ran)
    return Expansion(
        name=suite.name,
        cells=cells,
        excluded=excluded,
        prerequisites=assembly.prerequisites,
        blocked=assembly.blocked,
        axes={**{axis: len(getattr(suite.grid, axis)) for axis in AXES}, "seed": suite.seeds.count},
        facts=assembly.facts,
        flops=assembly.flops,
        unused=assembly.unused,
    )


def _lay_out(
    loaded: LoadedSuite, entries: Entries, assembly: Assembly, problems: list[Problem]
) -> list[tuple[dict[str, str | int], str]]:
    """Walks the grid: excluded cells come back, the others go into the assembly."""
    suite, tree = loaded.suite, loaded.tree
    rules = [Rule(("exclude", i), rule.where, ("exclude", i)) for i, rule in enumerate(suite.exclude)]
    for rule in [*rules, *assembly.rules]:
        problems += key_problems(rule, entries, tree)
    excluded: list[tuple[dict[str, str | int], str]] = []
    for point in points_of(suite.grid, entries):
        for seed in range(suite.seeds.count):
            hit = next((i for i, rule in enumerate(rules) if rule.matches(point, suite.protocol, seed)), None)
            if hit is None:
                assembly.add(point, seed)
            else:
                excluded.append((_coords(point, seed), suite.exclude[hit].because))
            for rule in rules if hit is not None else ():
                rule.used += rule.matches(point, suite.protocol, seed)
    partitions = [label for each in suite.grid.partition for label in (each.label, each.kind)]
    unused = [rule for rule in [*assembly.rules, *rules] if not rule.used and not _inherited(loaded, rule)]
    assembly.unused += [unused_problem(rule, entries, partitions, tree) for rule in unused]
    return excluded


def _inherited(loaded: LoadedSuite, rule: Rule) -> bool:
    """Whether a rule comes from a file that the suite extends: such a file may serve many suites."""
    origin = locate(loaded.tree, rule.path)
    file = origin.rsplit(":", 2)[0]
    return not origin.startswith("-s ") and Path(file).resolve() != Path(loaded.path).resolve()


def points_of(grid: Grid, entries: Entries) -> Iterator[Point]:
    """Yields the points of the grid: the product in the order of `AXES`; zipped axes advance together."""
    zipped = [axis for axis in AXES if axis in grid.zip]
    groups = [[axis] for axis in AXES if axis not in zipped[1:]]
    groups = [zipped if group == zipped[:1] else group for group in groups]
    steps = [list(zip(*(range(len(getattr(grid, axis))) for axis in group), strict=True)) for group in groups]
    for combination in itertools.product(*steps):
        index = {
            axis: i
            for group, step in zip(groups, combination, strict=True)
            for axis, i in zip(group, step, strict=True)
        }
        chosen = {axis: entries[axis][index[axis]] for axis in PLUGIN_KINDS}
        yield Point(chosen, grid.partition[index["partition"]], index["partition"])


def _tuned_rules(loaded: LoadedSuite) -> list[Rule]:
    return [
        Rule(("tuned", index), dict(rule.where), ("tuned", index, "where"))
        for index, rule in enumerate(loaded.suite.tuned)
    ]


def _coords(point: Point, seed: int) -> dict[str, str | int]:
    labels: dict[str, str | int] = {axis: entry.label for axis, entry in point.entries.items()}
    labels |= {"partition": point.partition.label, "seed": seed}
    return {axis: labels[axis] for axis in (*AXES, "seed")}


def _duplicates(cells: list[Cell], points: list[Point], loaded: LoadedSuite) -> list[Problem]:
    """Returns pairs of grid entries that lead to one and the same experiment."""
    first: dict[str, int] = {}
    problems: dict[tuple[str, int, int], Problem] = {}
    for number, cell in enumerate(cells):
        other = first.setdefault(cell_id(cell), number)
        if other == number:
            continue
        for axis, one in points[number].entries.items():
            two = points[other].entries[axis]
            if one is not two:
                message = f"{axis} {one.label!r} is the same experiment as {axis} {two.label!r}"
                where = locate(loaded.tree, one.path)
                hint = "remove one of them; labels do not make a difference"
                problems.setdefault((axis, one.index, two.index), Problem(message, where, hint, check="cells"))
    return list(problems.values())
