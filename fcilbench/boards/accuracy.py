"""The accuracy board, and how a board is built of blocks, column groups and methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, get_args

from fcilbench.boards.model import Block, Board, Column, Entry, Group, Rank
from fcilbench.boards.notes import block_notes, board_notes
from fcilbench.boards.scenario import Sample, as_facts, by_method, labels, samples, split
from fcilbench.boards.stats import LEAST_SEEDS, estimate, ranks
from fcilbench.results.light import metric_values
from fcilbench.results.provenance import digest
from fcilbench.spec.cell import Cell
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.protocol import TaskIdentity
from fcilbench.spec.row import Row

Figures = Mapping[str, Mapping[str, float | None]]
"""Figures of one cell: by group key and metric name; a metric that was not measured is absent."""

_APART = "column groups are task identities (what a method is told of a test sample's task); never ranked together"


class AccuracyBoard:
    """Final average accuracy, average incremental accuracy and forgetting per method, one block a scenario.

    Args:
        metrics: Names of the metrics to show, the first of which ranks; by default those that `METRICS` shows.
    """

    name: ClassVar[str] = "accuracy"
    version: ClassVar[str] = "2"

    def __init__(self, metrics: Sequence[str] = ()) -> None:
        self.metrics = tuple(metrics) or tuple(each.name for each in METRICS.values() if each.shown)

    def build(self, rows: Iterable[Row], planned: Mapping[str, Cell] | None = None) -> Board:
        """Returns the board of some rows.

        Args:
            rows: Rows; the last one of a cell counts. Their order changes nothing else.
            planned: The cells that were planned, by id. If given, only they are shown, and those without a row
                count as `missing`; otherwise the rows themselves are the plan.
        """
        scenarios = split(samples(rows, planned))
        blocks = tuple(
            build_block(scenario, members, self._groups(scenario, members), self._figures)
            for scenario, members in scenarios
        )
        facts = [(block, as_facts(scenario)) for block, (scenario, _) in zip(blocks, scenarios, strict=True)]
        return Board(board=self.name, title="Accuracy board", blocks=blocks, notes=board_notes(facts, _APART))

    def _groups(self, scenario: Mapping[str, Any], members: Sequence[Sample]) -> tuple[Group, ...]:
        measured = {name for sample in members if sample.row for name in sample.row.metrics}
        return tuple(
            Group(
                key=identity,
                columns=tuple(
                    Column(metric=name, title=metric.title, unit=metric.unit, better=metric.better)
                    for name, metric in ((name, METRICS[name]) for name in self.metrics)
                    if metric.function is not None or f"{name}/{identity}" in measured
                ),
            )
            for identity in get_args(TaskIdentity)
            if identity in scenario["evaluate"]
        )

    def _figures(self, row: Row) -> Figures:
        figures: dict[str, dict[str, float | None]] = {}
        for key, value in metric_values(row, self.metrics).items():
            name, _, identity = key.partition("/")
            figures.setdefault(identity, {})[name] = value.value
        return figures


def build_block(
    scenario: Mapping[str, Any],
    members: Sequence[Sample],
    groups: tuple[Group, ...],
    figures: Callable[[Row], Figures],
) -> Block:
    """Builds one block of any board: estimates over seeds, ranks per group, failures and notes.

    Args:
        scenario: What its cells have in common.
        members: Its cells.
        groups: Its columns.
        figures: Returns the figures of a finished row.
    """
    methods = by_method(members)
    entries = [_entry(label, methods[label], groups, figures) for label in sorted(methods)]
    ranking = {group.key: _rank(entries, group) for group in groups}
    ranked = tuple(
        entry.model_copy(
            update={"ranks": {key: r[entry.aggregator] for key, r in ranking.items() if entry.aggregator in r}}
        )
        for entry in entries
    )
    return Block(
        scenario=labels(members[0]),
        digest=digest(scenario),
        facts=as_facts({key: scenario[key] for key in ("protocol", "tasks", "seeds", "data")}),
        groups=groups,
        entries=ranked,
        notes=block_notes(groups, ranked, methods),
    )


def _entry(label: str, group: Sequence[Sample], columns: Iterable[Group], figures: Callable[[Row], Figures]) -> Entry:
    found = {sample.seed: figures(sample.row) for sample in group if sample.row and sample.status == "ok"}
    estimates = {
        part.key: {
            column.metric: estimate({seed: each.get(part.key, {}).get(column.metric) for seed, each in found.items()})
            for column in part.columns
        }
        for part in columns
    }
    failures = Counter(sample.status for sample in group if sample.status != "ok")
    reasons = {f"{sample.status}: {sample.reason}" for sample in group if sample.reason and sample.status != "ok"}
    return Entry(
        aggregator=label,
        ok=sum(sample.status == "ok" for sample in group),
        planned=len(group),
        failures=dict(sorted(failures.items())),
        reasons=tuple(sorted(reasons)),
        estimates=estimates,
        warnings=tuple(sorted({warning for sample in group if sample.row for warning in sample.row.warnings})),
    )


def _rank(entries: Iterable[Entry], group: Group) -> dict[str, Rank]:
    column = group.columns[0]
    if column.better == "neither":
        return {}
    found = {entry.aggregator: entry.estimates[group.key][column.metric] for entry in entries}
    enough = {name: each.values for name, each in found.items() if each.n >= LEAST_SEEDS and not each.constant}
    return ranks(enough, higher=column.better == "higher")
