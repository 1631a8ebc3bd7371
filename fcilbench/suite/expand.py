"""From a suite to its cells: the product of the axes, the rules, every parameter resolved; and the checks of this."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fcilbench.errors import Problem, UsageError
from fcilbench.escape import line
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Resolved
from fcilbench.registry.entrypoints import lookup
from fcilbench.registry.validation import explain, validate
from fcilbench.spec.cell import OWN, PLUGIN_KINDS, Cell, PluginUse, split_classes
from fcilbench.spec.identity import cell_id
from fcilbench.spec.protocol import Evaluation, Limits, Protocol, Seeds
from fcilbench.suite import CHECKS
from fcilbench.suite.load import LoadedSuite, load_suite
from fcilbench.suite.lock import UNSEALED
from fcilbench.suite.resolve import (
    Entries,
    GridEntry,
    Point,
    Rule,
    Settings,
    label_problems,
    read_entries,
    read_rules,
    read_selectors,
    settings_of,
)
from fcilbench.suite.schema import AXES, Axis, Grid, Scoring, Suite
from fcilbench.suite.yaml import InvalidSuiteError, place

_MODALITIES = {"vision": "images", "text": "texts", "array": "arrays"}

Probe = Callable[[Sequence[Cell]], Sequence[str | None]]
"""Runs one tiny forward and aggregate for each cell's plugins; returns what went wrong, or `None`."""

MAX_CELLS = 10_000
"""Most cells of one suite."""


@dataclass(frozen=True)
class Blocked:
    """A cell that needs something missing on this machine, so that its parameters and its id are not known.

    `missing` says what, in a line each.
    """

    coords: dict[str, str | int]
    missing: tuple[str, ...]


@dataclass
class Expansion:
    """The cells of a suite.

    Attributes:
        cells: In the order of the grid (data set, backbone, partition, aggregator, stress), seeds innermost.
        ids: Identity of each cell.
        blocked: Cells that need something missing; they are not among `cells`.
        axes: Number of entries of each axis, `seed` last.
        facts: By `<axis>:<label>` what the plugin of an entry declares, and its full name as `plugin`.
        unused: `tuned` and `exclude` rules that match no cell, or that name an entry which the grid does not have.
        remarks: What a user should know of tuned values of which nothing shows if they were edited by hand, and of the
            data: samples that are passed over, or that may be mistakes.
    """

    name: str
    cells: list[Cell] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    excluded: list[tuple[dict[str, str | int], str]] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    axes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    unused: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def missing_lines(blocked: Iterable[Blocked]) -> list[str]:
    """Returns what is missing on this machine, one line each, without repetitions."""
    return list(dict.fromkeys(line for each in blocked for line in each.missing))


def expand(loaded: LoadedSuite) -> Expansion:
    """Expands a suite to its cells.

    Raises:
        InvalidSuiteError: If plugins, their parameters, splits, rules or boards are wrong, two cells are the same, or
            no rule of a lock file matches a cell.
    """
    suite, tree = loaded.suite, loaded.tree
    ran = ("parse", "schema", "plugins")
    with catalog.session():
        entries, problems = read_entries(suite.grid)
        default = suite.evaluate.selectors == Scoring().selectors  # that of every cell, whatever is installed
        selectors, wrong = ([], []) if default else read_selectors(suite.evaluate.selectors)
        problems += [*wrong, *_grid_problems(suite)]
        rules = read_rules(suite)
        problems = problems or [each for rule in rules for each in rule.condition_problems(entries)]
        if problems:
            raise InvalidSuiteError(place(tree, problems), ran)
        builder = _Builder(suite, selectors)
        builder.build(entries, rules)
    if builder.problems:
        raise InvalidSuiteError(place(tree, builder.problems), (*ran, "params", "tasks"))
    expansion = builder.expansion
    points = list(points_of(suite.grid, entries))
    locked = [rule for rule in rules if rule.locked]
    if locked and not any(rule.used for rule in locked):
        problem = locked[0].unused_problem(points, "the whole lock file")
        raise InvalidSuiteError(place(tree, [replace(problem, hint="give one that `tune` wrote for this suite")]), ran)
    own = [rule for rule in rules if not loaded.inherited(rule.path)]
    unused = [rule.strange_problem(points) if rule.used else rule.unused_problem(points) for rule in own]
    expansion.unused = place(tree, [problem for problem in unused if problem])
    expansion.remarks = [f"{file}: {UNSEALED}" for file in loaded.unsealed]
    expansion.remarks += data_remarks(expansion.facts)
    missing = list(dict.fromkeys(each for _, found in builder.blocked for each in found))
    lines = [f"{each} ({each.hint})" if each.hint else str(each) for each in place(tree, missing)]
    told = dict(zip(missing, lines, strict=True))
    expansion.blocked = [Blocked(coords, tuple(told[each] for each in found)) for coords, found in builder.blocked]
    expansion.axes = {**{axis: len(getattr(suite.grid, axis)) for axis in AXES}, "seed": suite.seeds.count}
    return expansion


def data_remarks(facts: Mapping[str, dict[str, Any]]) -> list[str]:
    """Returns what plugins remark on the data sets of a suite, once for each: what is passed over, or may be wrong."""
    data = {key.partition(":")[2]: each for key, each in facts.items() if key.startswith("dataset:")}
    return [f"dataset {label!r}: {line(remark)}" for label, each in data.items() for remark in each.get("remarks", ())]


def points_of(grid: Grid, entries: Entries) -> Iterator[Point]:
    """Yields the points of the grid: the product in the order of `AXES`; zipped axes advance together."""
    for steps in itertools.product(*_steps(grid)):
        index = {axis: i for step in steps for axis, i in step.items()}
        chosen = {axis: entries[axis][index[axis]] for axis in PLUGIN_KINDS}
        yield Point(chosen, grid.partition[index["partition"]])


def _steps(grid: Grid) -> list[list[dict[Axis, int]]]:
    """Returns the factors of the product: the indices of one axis, or of the zipped axes together."""
    zipped = [axis for axis in AXES if axis in grid.zip]
    groups = [zipped if axis in zipped else [axis] for axis in AXES if axis not in zipped[1:]]
    return [[dict.fromkeys(group, i) for i in range(len(getattr(grid, group[0])))] for group in groups]


def _grid_problems(suite: Suite) -> list[Problem]:
    """Returns boards that do not exist, zipped axes that do not fit, partitions named alike, too many cells."""
    grid, problems = suite.grid, []
    for index, name in enumerate(suite.boards):
        try:
            lookup("boards", name)
        except UsageError as error:
            problems.append(Problem(error.message, ("boards", index), error.hint, check="plugins"))
    sizes = {axis: len(getattr(grid, axis)) for axis in grid.zip}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        message = f"zipped axes must have equally many entries: {shown}"
        problems.append(Problem(message, ("grid", "zip"), check="cells"))
    problems += label_problems([(each.label, ("grid", "partition", i)) for i, each in enumerate(grid.partition)])
    number = math.prod(map(len, _steps(grid))) * suite.seeds.count
    if number > MAX_CELLS:
        message = f"the grid has {number:,} cells, more than {MAX_CELLS:,}"
        problems.append(Problem(message, ("grid",), "make several suites of it", key=True, check="cells"))
    return problems


class _Builder:
    """Builds the cells; notes in `problems` what is wrong with the suite, in `blocked` what this machine lacks."""

    def __init__(self, suite: Suite, selectors: Sequence[GridEntry]) -> None:
        self._selectors = selectors
        self.expansion = Expansion(suite.name)
        self.problems: list[Problem] = []
        self.blocked: list[tuple[dict[str, str | int], list[Problem]]] = []
        self._suite = suite
        self._lock = suite.lock_digest
        self._limits = Limits(wall_seconds=suite.limits.wall, retries=suite.limits.retries)
        self._first: dict[str, Point] = {}

    def build(self, entries: Entries, rules: list[Rule]) -> None:
        """Builds the cells of the grid, except those that an `exclude` rule matches."""
        for point in points_of(self._suite.grid, entries):
            for seed in range(self._suite.seeds.count):
                hits = [rule for rule in rules if rule.because and rule.matches(point, self._suite.protocol, seed)]
                if hits:
                    self.expansion.excluded.append(({**point.labels, "seed": seed}, hits[0].because))
                    continue
                tuned: Settings = {}
                locked = False
                for rule in rules:
                    if not rule.because and rule.matches(point, self._suite.protocol, seed):
                        self.problems += rule.apply(point, tuned)
                        locked = locked or rule.locked
                self._add(point, seed, tuned, self._lock if locked else None)

    def _add(self, point: Point, seed: int, tuned: Settings, lock: str | None) -> None:
        """Adds a cell if nothing is wrong with its plugins, protocol and tasks."""
        missing: list[Problem] = []
        answers = {axis: self._resolve(entry, tuned, missing) for axis, entry in point.entries.items()}
        pickers = [(entry, self._resolve(entry, {}, missing)) for entry in self._selectors]
        protocol = self._protocol({**point.entries["aggregator"].settings, **tuned})
        tasks = self._split(point, answers["dataset"], missing)
        if (
            protocol is None
            or tasks is None
            or any(answer.problems for answer in (*answers.values(), *(answer for _, answer in pickers)))
        ):
            self.blocked.append(({**point.labels, "seed": seed}, missing))
            return
        facts = answers["dataset"].facts
        self._check_samples(point, len(tasks) * protocol.clients, facts.get("train"))
        self._check_inputs(point, facts, answers["backbone"].facts)
        seeds = self._suite.seeds
        cell = Cell(
            suite=self._suite.name,
            protocol=protocol,
            tasks=tasks,
            data_fingerprint=str(facts.get("fingerprint", "")),
            partition=point.partition,
            seeds=Seeds(base=seeds.base, index=seed, vary=tuple(seeds.vary)),
            evaluate=Evaluation(task_identity=self._suite.evaluate.task_identity),
            selectors=tuple(_use(entry, answer) for entry, answer in pickers) or (OWN,),
            runtime=self._suite.runtime,
            limits=self._limits,
            tuned_from=lock,
            **{str(axis): _use(point.entries[axis], answer) for axis, answer in answers.items()},
        )
        identity = cell_id(cell)
        self.expansion.cells.append(cell)
        self.expansion.ids.append(identity)
        self._compare(point, self._first.setdefault(identity, point))

    def _resolve(self, entry: GridEntry, tuned: Settings, missing: list[Problem]) -> Resolved:
        answer = entry.resolve(tuned)
        if answer.problems:
            (missing if answer.prerequisite else self.problems).extend(entry.problems(tuned))
        else:
            facts = {**answer.facts, "plugin": entry.ref.name}
            self.expansion.facts.setdefault(f"{entry.axis}:{entry.label}", facts)
        return answer

    def _compare(self, point: Point, same: Point) -> None:
        """Notes the entries that differ between two points of the grid with the same identity."""
        for axis, entry in point.entries.items():
            other = same.entries[axis]
            if entry is not other:
                message = f"{axis} {entry.label!r} is the same experiment as {axis} {other.label!r}"
                hint = "remove one of them; labels do not make a difference"
                self.problems.append(Problem(message, entry.path, hint, check="cells"))

    def _check_samples(self, point: Point, shares: int, samples: int | None) -> None:
        """Notes a data set with too few samples for `min_samples` of each client and task."""
        data, least = point.entries["dataset"], point.partition.min_samples
        if samples is not None and samples < shares * least:
            message = f"dataset {data.label!r}: {samples} samples do not give each client {least} of each task"
            self.problems.append(Problem(message, data.path, "lower clients, tasks or min_samples", check="tasks"))

    def _check_inputs(self, point: Point, data: Mapping[str, Any], network: Mapping[str, Any]) -> None:
        """Notes a backbone that does not read what a data set has, or arrays of another shape."""
        backbone, dataset = point.entries["backbone"], point.entries["dataset"]
        has, reads = data.get("modality"), network.get("reads")
        if has is None or reads is None:
            return
        if has not in reads:
            kinds = " and ".join(_MODALITIES.get(each, each) for each in reads)
            what = f"reads {kinds}, and dataset {dataset.label!r} has {_MODALITIES.get(has, has)}"
        elif has == "array" and (wanted := network.get("input_shape")) not in (None, shape := data.get("shape")):
            what = f"reads arrays of shape {wanted}, and dataset {dataset.label!r} has {shape}"
        else:
            return
        rule = f"{{dataset: {dataset.label}, backbone: {backbone.label}, because: it does not read them}}"
        hint = (
            f"leave the pair out with a line under `exclude`: - {rule}; or pair the axes by `zip: [dataset, backbone]`"
        )
        message = f"backbone {backbone.label!r} {what}"
        self.problems.append(Problem(message, backbone.path, hint, check="inputs"))

    def _protocol(self, settings: Settings) -> Protocol | None:
        own = settings_of("protocol", settings)
        values = {name: setting.value for name, setting in own.items()}
        try:
            return validate(Protocol, {**self._suite.protocol.model_dump(mode="json"), **values})
        except ValidationError as error:
            for problem in explain(error, Protocol):
                setting = own[str(problem.path[0])] if problem.path else next(iter(own.values()))
                self.problems.append(Problem(f"protocol.{problem.message}", setting.path, check="params"))
        return None

    def _split(self, point: Point, answer: Resolved, missing: list[Problem]) -> tuple[int, ...] | None:
        entry = point.entries["dataset"]
        tasks = getattr(entry.written, "tasks", None)
        try:
            return split_classes(tasks, int(answer.facts["classes"]), answer.facts["default_tasks"])
        except UsageError as error:
            message = f"dataset {entry.label!r}: {error}"
            self.problems.append(Problem(message, (*entry.path, "tasks"), check="tasks"))
        except KeyError as error:
            if not answer.problems:
                missing.append(Problem(f"{entry.ref.name} does not declare the fact {error}", entry.path))
        return None


def _use(entry: GridEntry, answer: Resolved) -> PluginUse:
    return PluginUse(
        name=entry.ref.name,
        label=entry.label,
        version=answer.version,
        params=answer.params,
        identity=answer.identity,
        code_digest=answer.code_digest,
        roles=answer.facts.get("roles", {}),
    )


@dataclass(frozen=True)
class CheckResult:
    """What one check found; it did not run if a check before it found problems."""

    id: str
    promise: str
    ran: bool
    problems: tuple[Problem, ...] = ()


def run_checks(
    path: Path | str, overrides: Sequence[str] = (), deep: Probe | None = None, params: Path | None = None
) -> tuple[list[CheckResult], Expansion]:
    """Runs the checks on a suite, with the rules of a lock file `params`; writes nothing.

    `deep` runs the check of this name on one cell of each combination of plugins; `None` leaves it out.

    Returns:
        The result of each check, in order, and the cells of the suite: none if it is invalid.
    """
    checks = [check for check in CHECKS if deep or check != "deep"]
    expansion = Expansion("")
    try:
        expansion = expand(load_suite(path, overrides, params))
        ran: Set[str] = set(checks)
        problems = expansion.unused
        for reason, names in (probe_combinations(expansion.cells, deep) if deep else {}).items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            problems.append(Problem(f"{names[0]}{more}: {reason}", check="deep", where=str(path)))
    except InvalidSuiteError as error:
        ran, problems = error.ran, [*error.problems]
    results = []
    for check in checks:
        found = tuple(problem for problem in problems if problem.check == check)
        results.append(CheckResult(check, CHECKS[check], check in ran or bool(found), found))
    return results, expansion


def probe_combinations(cells: Sequence[Cell], probe: Probe) -> dict[str, list[str]]:
    """Probes the first cell of each combination of plugins and parameters.

    Returns the combinations that failed, by the reason.
    """
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(repr([(use.name, use.params) for use in cell.plugins.values()]), cell)
    found = defaultdict[str, list[str]](list)
    for cell, reason in zip(first.values(), probe(list(first.values())), strict=True):
        if reason is not None:
            found[reason].append(" + ".join(use.label for use in cell.plugins.values()))
    return found
