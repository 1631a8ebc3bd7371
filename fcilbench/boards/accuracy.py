"""The accuracy board: final accuracy, average incremental accuracy and forgetting, with their uncertainty."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from fcilbench.boards.model import Block, Board, Column, Entry, Group, Rank
from fcilbench.boards.notes import block_notes, board_notes
from fcilbench.boards.scenario import Sample, flatten, labels, method_of, samples, split
from fcilbench.boards.stats import LEAST_SEEDS, estimate, ranks
from fcilbench.results.provenance import digest
from fcilbench.spec.cell import Cell
from fcilbench.spec.protocol import TaskIdentity
from fcilbench.spec.row import Row

TITLES = {
    "faa": "FAA",
    "aia": "AIA",
    "accuracy_micro": "Accuracy (micro)",
    "forgetting": "Forgetting",
    "forgetting_floored": "Forgetting (floored)",
    "forgetting_diagonal": "Forgetting (diagonal)",
    "bwt": "BWT",
    "oos_auroc": "OOS AUROC",
}
_WHERE_MEASURED = ("oos_auroc",)
"""Shown beside the others in scenarios whose data set asks for them: AUROC of detecting out-of-scope inputs."""
_LOWER = ("forgetting", "forgetting_floored", "forgetting_diagonal")


class AccuracyBoard:
    """Final average accuracy, average incremental accuracy and forgetting per method, one block a scenario.

    Args:
        metrics: Metrics to show, the first of which ranks; names as in `<metric>/<task identity>`.
    """

    name: ClassVar[str] = "accuracy"
    version: ClassVar[str] = "1"

    def __init__(self, metrics: Sequence[str] = ("faa", "aia", "forgetting")) -> None:
        self.metrics = tuple(metrics)

    def build(self, rows: Iterable[Row], planned: Mapping[str, Cell] | None = None) -> Board:
        """Returns the board of some rows.

        Args:
            rows: Rows; the last one of a cell counts. Their order changes nothing else.
            planned: The cells that were planned, by id. If given, only they are shown, and those without a row
                count as `missing`; otherwise the rows themselves are the plan.
        """
        scenarios = split(samples(rows, planned))
        blocks = tuple(self._block(scenario, members) for scenario, members in scenarios)
        notes = board_notes(
            [(block, flatten(scenario)) for block, (scenario, _) in zip(blocks, scenarios, strict=True)]
        )
        return Board(board=self.name, title="Accuracy board", blocks=blocks, notes=notes)

    def _block(self, scenario: Mapping[str, Any], members: Sequence[Sample]) -> Block:
        methods = _methods(members)
        groups = tuple(
            Group(
                identity=identity,
                columns=tuple(_column(name, identity, members) for name in self._shown(identity, members)),
            )
            for identity in get_args(TaskIdentity)
            if identity in scenario["evaluate"]
        )
        entries = [_entry(label, methods[label], groups) for label in sorted(methods)]
        ranking = {group.identity: _rank(entries, group) for group in groups}
        ranked = tuple(
            entry.model_copy(
                update={"ranks": {key: r[entry.aggregator] for key, r in ranking.items() if entry.aggregator in r}}
            )
            for entry in entries
        )
        return Block(
            scenario=labels(members[0]),
            digest=digest(scenario),
            facts=flatten({key: scenario[key] for key in ("protocol", "tasks", "seeds", "data")}),
            groups=groups,
            entries=ranked,
            notes=block_notes(groups, ranked, methods),
        )

    def _shown(self, identity: TaskIdentity, members: Iterable[Sample]) -> list[str]:
        measured = {name for sample in members for name in sample.metrics}
        return [*self.metrics, *(metric for metric in _WHERE_MEASURED if f"{metric}/{identity}" in measured)]


def _methods(members: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Groups a block's samples by method; methods that share a label get what tells them apart added to it."""
    by_key: dict[str, list[Sample]] = defaultdict(list)
    for sample in members:
        by_key[digest(method_of(sample))].append(sample)
    by_label: dict[str, list[list[Sample]]] = defaultdict(list)
    for group in by_key.values():
        by_label[str(group[0].coords.get("aggregator", ""))].append(group)
    methods = {}
    for label, found in by_label.items():
        facts = [flatten(method_of(group[0])) for group in found]
        keys = sorted({key for fact in facts for key in fact})
        differing = [key for key in keys if len({fact.get(key) for fact in facts}) > 1]
        for group, fact in zip(found, facts, strict=True):
            apart = ", ".join(f"{key.removeprefix('params.')}={fact.get(key, '?')}" for key in differing)
            methods[f"{label} ({apart})" if apart else label] = group
    return methods


def _column(metric: str, identity: TaskIdentity, members: Iterable[Sample]) -> Column:
    for sample in members:
        found = sample.metrics.get(f"{metric}/{identity}")
        if found is not None:
            return Column(metric=metric, title=TITLES.get(metric, metric), unit=found.unit, better=found.better)
    better: Literal["higher", "lower"] = "lower" if metric in _LOWER else "higher"
    return Column(metric=metric, title=TITLES.get(metric, metric), unit="ratio", better=better)


def _entry(label: str, group: Sequence[Sample], columns: Iterable[Group]) -> Entry:
    ok = [sample for sample in group if sample.status == "ok"]
    estimates = {
        part.identity: {column.metric: estimate(_values(ok, column.metric, part.identity)) for column in part.columns}
        for part in columns
    }
    failures = Counter(sample.status for sample in group if sample.status != "ok")
    reasons = {f"{sample.status}: {sample.reason}" for sample in group if sample.reason and sample.status != "ok"}
    return Entry(
        aggregator=label,
        ok=len(ok),
        planned=len(group),
        failures=dict(sorted(failures.items())),
        reasons=tuple(sorted(reasons)),
        estimates=estimates,
        warnings=tuple(sorted({warning for sample in group for warning in sample.warnings})),
    )


def _values(group: Iterable[Sample], metric: str, identity: TaskIdentity) -> dict[int, float | None]:
    name = f"{metric}/{identity}"
    return {sample.seed: sample.metrics[name].value if name in sample.metrics else None for sample in group}


def _rank(entries: Iterable[Entry], group: Group) -> dict[str, Rank]:
    column = group.columns[0]
    if column.better == "neither":
        return {}
    found = {entry.aggregator: entry.estimates[group.identity][column.metric] for entry in entries}
    enough = {name: estimate.values for name, estimate in found.items() if estimate.n >= LEAST_SEEDS}
    return ranks(enough, higher=column.better == "higher")
