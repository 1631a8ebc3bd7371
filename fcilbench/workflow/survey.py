"""Describes data before a suite is run: those of a suite, or a folder of images or a table of texts of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fcilbench.data.root import find_data
from fcilbench.errors import OK, PREREQUISITE, USAGE, DataError, PrerequisiteError, UsageError
from fcilbench.execution.probe import Progress, inspect_dataset
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Resolved
from fcilbench.registry.entrypoints import lookup
from fcilbench.spec.cell import split_classes
from fcilbench.spec.protocol import Partition, Protocol, Seeds
from fcilbench.spec.row import Row
from fcilbench.suite.load import LoadedSuite, load_suite, override
from fcilbench.suite.resolve import Entries, read_entries
from fcilbench.suite.yaml import InvalidSuiteError, Node, place

SUITES = (".yaml", ".yml")


@dataclass(frozen=True)
class Survey:
    """What is known of one data set.

    Attributes:
        label: What the suite calls it; of a path, its name.
        plugin: The plugin that reads it.
        params: The options of the plugin.
        facts: The survey (`fcilbench.worker.survey`), with the reason as `problem` if the data cannot be read.
        exit_code: 0, 2 if an option is wrong or a partition cannot be drawn, 5 if the data cannot be read.
        given: The options that a user gave who named a folder or a file; empty for a data set of a suite.
    """

    label: str
    plugin: str
    params: dict[str, Any]
    facts: dict[str, Any]
    exit_code: int = OK
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """The survey as a JSON object."""
        return {"dataset": self.label, "plugin": self.plugin, "params": self.params, **self.facts}


def inspect_data(what: Path, overrides: Sequence[str] = (), progress: Progress | None = None) -> list[Survey]:
    """Describes each data set of a suite, or the images of a folder or the texts of a table.

    `overrides` are `path=value` each: of the suite, or an option of `image-folder` or `csv`.

    Raises:
        InvalidSuiteError: If the suite is invalid, or names a data set that does not exist.
    """
    with catalog.session():
        if what.suffix.lower() in SUITES:
            return _of_suite(load_suite(what, overrides), progress)
        return [_of_path(what, overrides, progress)]


def spread_of(row: Row, progress: Progress | None = None) -> dict[str, Any]:
    """Returns how the samples of a row's data set were spread over tasks and clients, drawn again from its seeds.

    Returns:
        One of the `partitions` of a survey (`fcilbench.worker.survey`): `clients`, `problem` and `tasks`, each with
        `classes` and with `counts` by client and class.

    Raises:
        PrerequisiteError: If the data set cannot be read here.
    """
    protocol = Protocol.model_validate({k: v for k, v in row.params.protocol.items() if k in Protocol.model_fields})
    draw = {
        "label": str(row.coords.get("partition", "")),
        "clients": protocol.clients,
        "tasks": [len(names) for names in row.classes],
        "order": row.seeds["order"],
        "partition": row.seeds["partition"],
        "validation": protocol.validation,
        "spec": row.params.partition,
    }
    found = inspect_dataset(row.plugins["dataset"].name, row.params.dataset, (), [draw], progress)
    if found.get("problem"):
        raise PrerequisiteError(f"{row.coords.get('dataset')}: {found['problem']}")
    spread: dict[str, Any] = found["partitions"][0]
    return spread


def _of_path(what: Path, overrides: Sequence[str], progress: Progress | None) -> Survey:
    options = Node({}, "", "")
    for text in overrides:
        options = override(options, text)
    ref = lookup("datasets", "csv" if _is_table(what) else "image-folder")
    given = {"path": str(what), **options.plain()}
    answer = catalog.resolve(ref, given)
    example = [(Partition(kind="dirichlet", value=0.5), Protocol(), Seeds())]
    survey = _Inspector(example, [], progress).survey(what.name or str(what), ref.name, answer, None)
    undrawn = survey.exit_code == USAGE and "digest" in survey.facts  # the example's ten clients are nobody's choice
    return replace(survey, given=given, exit_code=OK if undrawn else survey.exit_code)


def _is_table(what: Path) -> bool:
    """Returns whether a path is a file; of one that is not there, whether it is named like one."""
    try:
        return find_data(str(what)).is_file()
    except DataError:
        return bool(what.suffix)


def _of_suite(loaded: LoadedSuite, progress: Progress | None) -> list[Survey]:
    suite = loaded.suite
    entries, problems = read_entries(suite.grid)
    if wrong := [problem for problem in problems if problem.path[:2] == ("grid", "dataset")]:
        raise InvalidSuiteError(place(loaded.tree, wrong), ("parse", "schema"))
    seeds = Seeds(base=suite.seeds.base, index=0, vary=tuple(suite.seeds.vary))
    spreads = [(partition, suite.protocol, seeds) for partition in suite.grid.partition]
    inspector = _Inspector(spreads, _backbones(entries), progress)
    return [
        inspector.survey(entry.label, entry.ref.name, entry.resolve({}), getattr(entry.written, "tasks", None))
        for entry in entries["dataset"]
    ]


def _backbones(entries: Entries) -> list[dict[str, Any]]:
    """Returns the text backbones of a grid that can be used here: they say what of a text is cut."""
    answers = [(entry, entry.resolve({})) for entry in entries["backbone"]]
    return [
        {"label": entry.label, "name": entry.ref.name, "params": answer.params}
        for entry, answer in answers
        if not answer.problems and "text" in answer.facts.get("reads", ())
    ]


@dataclass(frozen=True)
class _Inspector:
    """Asks a worker about data sets; `spreads` say how their samples are divided over clients."""

    spreads: Sequence[tuple[Partition, Protocol, Seeds]]
    backbones: Sequence[dict[str, Any]]
    progress: Progress | None

    def survey(self, label: str, plugin: str, answer: Resolved, tasks: int | list[int] | None) -> Survey:
        """Describes one data set, from the answer of the registry about its plugin."""
        if answer.problems:
            first, code = answer.problems[0], PREREQUISITE if answer.prerequisite else USAGE
            return Survey(label, plugin, {}, {"problem": first.message, "hint": first.hint}, code)
        split: tuple[int, ...] = ()
        problem = None
        try:
            split = split_classes(tasks, int(answer.facts["classes"]), answer.facts["default_tasks"])
        except UsageError as error:
            problem = str(error)
        progress = self.progress
        shown = progress and (lambda _, done, total: progress(label, done, total))
        facts = inspect_dataset(plugin, answer.params, self.backbones, self._draws(split), shown)
        unread = facts.get("problem") or facts.get("images", {}).get("broken")
        undrawn = any(partition["problem"] for partition in facts.get("partitions", ()))
        if problem and not unread:
            facts = {**facts, "problem": problem}
        return Survey(
            label, plugin, answer.params, facts, PREREQUISITE if unread else USAGE if problem or undrawn else OK
        )

    def _draws(self, split: tuple[int, ...]) -> list[dict[str, Any]]:
        return [
            {
                "label": partition.label,
                "clients": protocol.clients,
                "tasks": list(split),
                "order": seeds.of("order"),
                "partition": seeds.of("partition"),
                "validation": protocol.validation,
                "spec": partition.model_dump(mode="json"),
            }
            for partition, protocol, seeds in self.spreads
            if split
        ]
