"""Puts cells together: collects what each needs, resolves every distinct need once, then builds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fcilbench.registry import catalog
from fcilbench.registry.records import Resolved, Unresolved
from fcilbench.registry.validation import explain, validate
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.protocol import Protocol, Seeds
from fcilbench.suite.cost import model_key
from fcilbench.suite.entries import Entries, Entry, option_problems, use_of
from fcilbench.suite.keys import Setting
from fcilbench.suite.load import LoadedSuite
from fcilbench.suite.parse import locate
from fcilbench.suite.problems import Problem
from fcilbench.suite.rules import Point, Rule, Tuned, apply_rule
from fcilbench.suite.schema import PluginAxis
from fcilbench.suite.split import split_classes

Settings = Mapping[str, Setting]


@dataclass
class _Draft:
    """A cell to be: its place, and the keys of what it needs."""

    point: Point
    seed: int
    needs: dict[PluginAxis, str]
    protocol: str


@dataclass
class Assembly:
    """Cells in the making.

    Attributes:
        loaded: The suite.
        entries: Its plugin entries.
        rules: Its `tuned` rules.
        problems: What is wrong with the suite.
        prerequisites: What is missing on this machine.
        blocked: Number of cells that cannot be built for want of it.
        facts: What the plugins in use declare, by `<axis>:<full name>`.
        flops: Operations of one input's forward pass, of the backbones that tell it, by `model_key`.
        unused: Rules that match no cell.
    """

    loaded: LoadedSuite
    entries: Entries
    rules: Sequence[Rule]
    problems: list[Problem] = field(default_factory=list)
    prerequisites: list[str] = field(default_factory=list)
    blocked: int = 0
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    flops: dict[str, float] = field(default_factory=dict)
    unused: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._drafts: list[_Draft] = []
        self._uses: dict[str, tuple[Entry, Settings]] = {}
        self._answers: dict[str, Resolved | Unresolved] = {}
        self._protocol_settings: dict[str, Settings] = {}
        self._protocols: dict[str, Protocol] = {}
        self._tasks: dict[int, tuple[int, ...]] = {}

    def add(self, point: Point, seed: int) -> None:
        """Adds one cell of the grid."""
        tuned = Tuned()
        for rule, written in zip(self.rules, self.loaded.suite.tuned, strict=True):
            if rule.matches(point, self.loaded.suite.protocol, seed):
                rule.used += 1
                found = apply_rule(rule, written.set, point, tuned, self.loaded.tree)
                self.problems += [problem for problem in found if problem not in self.problems]
        needs = {axis: self._need(entry, tuned.plugins[axis]) for axis, entry in point.entries.items()}
        merged = {**point.entries["aggregator"].protocol, **tuned.protocol}
        key = json.dumps({name: setting.value for name, setting in merged.items()}, sort_keys=True, default=str)
        self._protocol_settings.setdefault(key, merged)
        self._drafts.append(_Draft(point, seed, needs, key))

    def resolve(self) -> None:
        """Resolves plugins, protocols and splits; fills `problems` and `prerequisites`."""
        self._add_unused_entries()
        sound = [key for key, (entry, _) in self._uses.items() if entry.broken is None]
        found = catalog.resolve([use_of(*self._uses[key]) for key in sound])
        self._answers = dict(zip(sound, found, strict=True))
        for key, (entry, settings) in self._uses.items():
            self._judge(entry, settings, self._answers.get(key))
        base = self.loaded.suite.protocol.model_dump(mode="json")
        for key, settings in self._protocol_settings.items():
            values = {name: setting.value for name, setting in settings.items()}
            try:
                self._protocols[key] = validate(Protocol, {**base, **values}) if values else self.loaded.suite.protocol
            except ValidationError as error:
                for problem in explain(error, Protocol.model_fields):
                    where = locate(self.loaded.tree, settings[str(problem.loc[0])].path)
                    self.problems.append(Problem(f"protocol.{problem.message}", where, check="params"))

    def cells(self) -> tuple[list[Cell], list[Point]]:
        """Builds the cells of a suite without problems.

        Returns:
            The cells that can be identified on this machine, and the point of the grid of each.
        """
        suite = self.loaded.suite
        cells, points = [], []
        limits = suite.limits.limits()
        plugin_uses = {key: self._plugin_use(key) for key in self._uses}
        for draft in self._drafts:
            chosen = {axis: plugin_uses[key] for axis, key in draft.needs.items()}
            if None in chosen.values():
                self.blocked += 1
                continue
            dataset = draft.point.entries["dataset"]
            cells.append(
                Cell(
                    suite=suite.name,
                    protocol=self._protocols[draft.protocol],
                    tasks=self._tasks[dataset.index],
                    data_fingerprint=str(self.facts[f"dataset:{dataset.ref.name}"].get("fingerprint", "")),
                    partition=draft.point.partition,
                    seeds=Seeds(base=suite.seeds.base, index=draft.seed, vary=tuple(suite.seeds.vary)),
                    evaluate=suite.evaluate,
                    runtime=suite.runtime,
                    limits=limits,
                    **{axis: use for axis, use in chosen.items() if use is not None},
                )
            )
            points.append(draft.point)
        return cells, points

    def _need(self, entry: Entry, tuned: Settings) -> str:
        values = {name: setting.value for name, setting in tuned.items()}
        key = f"{entry.axis}.{entry.index}:{json.dumps(values, sort_keys=True, default=str)}"
        if key not in self._uses:
            self._uses[key] = (entry, {**entry.options, **tuned})
        return key

    def _add_unused_entries(self) -> None:
        """An entry whose cells are all excluded is still checked."""
        used = {id(entry) for entry, _ in self._uses.values()}
        for entry in (entry for axis in self.entries.values() for entry in axis if id(entry) not in used):
            self._need(entry, {})

    def _judge(self, entry: Entry, settings: Settings, answer: Resolved | Unresolved | None) -> None:
        tree = self.loaded.tree
        if answer is None:
            self._miss(f"{locate(tree, entry.path)}: plugin {entry.ref.name} is broken: {entry.broken}")
        elif isinstance(answer, Resolved):
            self.facts[f"{entry.axis}:{entry.ref.name}"] = answer.facts
            if answer.facts.get("forward_flops") is not None:
                self.flops[model_key(entry.ref.name, answer.identity)] = float(answer.facts["forward_flops"])
            if entry.axis == "dataset" and entry.index not in self._tasks:
                self._split(entry, answer)
        elif answer.prerequisite:
            for problem in answer.problems:
                hint = f" ({problem.hint})" if problem.hint else ""
                self._miss(f"{locate(tree, entry.path)}: {problem.message}{hint}")
        else:
            self.problems += option_problems(answer, entry, settings, tree)

    def _miss(self, line: str) -> None:
        if line not in self.prerequisites:
            self.prerequisites.append(line)

    def _split(self, entry: Entry, answer: Resolved) -> None:
        try:
            self._tasks[entry.index] = split_classes(
                entry.tasks, int(answer.facts["classes"]), answer.facts["default_tasks"]
            )
        except ValueError as error:
            where = locate(self.loaded.tree, (*entry.path, "tasks"))
            self.problems.append(Problem(f"dataset {entry.label!r}: {error}", where, check="tasks"))
        except KeyError as error:
            self._miss(f"{locate(self.loaded.tree, entry.path)}: {entry.ref.name} does not declare the fact {error}")

    def _plugin_use(self, key: str) -> PluginUse | None:
        """Returns what a cell carries of a plugin, `None` if it is not usable on this machine."""
        entry, _ = self._uses[key]
        answer = self._answers.get(key)
        if not isinstance(answer, Resolved) or (entry.axis == "dataset" and entry.index not in self._tasks):
            return None
        return PluginUse(
            name=entry.ref.name,
            label=entry.label,
            version=answer.version,
            params=answer.params,
            identity=answer.identity,
            code_digest=answer.code_digest,
        )
