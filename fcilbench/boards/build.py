"""The three boards: which figures each one takes from the rows, and how blocks, entries and ranks are made of them."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from fcilbench.boards.model import Block, Board, Column, Entry, Group, Overall
from fcilbench.boards.notes import Here, arithmetic_notes, block_notes, board_notes
from fcilbench.boards.paper import PaperFigures
from fcilbench.boards.scenario import BoardCell, board_cells, by_method, labels, recipe_of, role_under, roles_of, split
from fcilbench.boards.stats import align, critical_difference, estimate, mean_ranks, rank_entries
from fcilbench.results.provenance import digest
from fcilbench.results.row import metric_values
from fcilbench.spec.cell import Cell
from fcilbench.spec.metrics import METRICS, Better, Metric
from fcilbench.spec.protocol import Scored, scored_order
from fcilbench.spec.row import Row
from fcilbench.tables import texts

Figures = dict[str, dict[str, dict[int, float | None]]]
"""Figures of one method: by group key, metric name and seed; what was not measured is absent."""


class BaseBoard(ABC):
    """What the boards share; each one says how it splits cells into blocks, and which figures it takes from them."""

    name: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[str] = "4"
    split: ClassVar[Mapping[str, bool]] = {}
    notes: ClassVar[tuple[str, ...]] = ()

    def build(
        self,
        rows: Iterable[Row],
        planned: Mapping[str, Cell] | None = None,
        here: Here | None = None,
        paper: PaperFigures | None = None,
    ) -> Board:
        """Returns the board of some rows.

        Args:
            rows: Rows; the last one of a cell counts. Their order changes nothing else.
            planned: The cells that were planned, by id. If given, only they are shown, and those without a row
                count as `missing`; otherwise the rows themselves are the plan.
            here: This checkout, against which stale rows are marked.
            paper: Printed figures to stand beside the measured ones.
        """
        found, clean = [], []
        for scenario, members in split(board_cells(rows, planned), **self.split):
            if groups := self.groups(members):
                block = self._block(scenario, members, groups, here, paper)
                found.append((block, texts(scenario)))
                # A clean scenario and its stressed ones have the same data and seeds: they count once.
                clean += [block] if any(not _stress(cell) for cell in members) else []
        blocks, overall = tuple(block for block, _ in found), _overall(clean)
        notes = (*self.notes, *board_notes(found, overall), *(paper.notes(blocks) if paper else ()))
        return Board(board=self.name, title=self.title, blocks=blocks, overall=overall, notes=notes)

    @abstractmethod
    def groups(self, members: Sequence[BoardCell]) -> tuple[Group, ...]:
        """Returns the column groups of a scenario's block; none if the board does not show the scenario."""

    @abstractmethod
    def figures(self, members: Sequence[BoardCell], groups: Sequence[Group]) -> Figures:
        """Returns the figures of one method's finished cells in the groups of its block."""

    def _block(
        self,
        scenario: Mapping[str, Any],
        members: Sequence[BoardCell],
        groups: tuple[Group, ...],
        here: Here | None,
        paper: PaperFigures | None,
    ) -> Block:
        methods = by_method(members)
        entries = [self._entry(label, methods[label], groups, here, paper) for label in sorted(methods)]
        ranking = {group.key: rank_entries(entries, group.key, group.columns[0]) for group in groups if group.ranked}
        recipes = [texts({"protocol": recipe_of(own[0])}) for own in methods.values()]
        shared = {key: value for key, value in recipes[0].items() if all(each[key] == value for each in recipes)}
        for place, entry in enumerate(entries):
            own = {key: found[entry.aggregator] for key, (found, _) in ranking.items() if entry.aggregator in found}
            entries[place] = entry.model_copy(update={"ranks": own})
        shown = {key: scenario[key] for key in ("protocol", "tasks", "seeds", "data", "hardware") if key in scenario}
        return Block(
            scenario=labels(members),
            digest=digest(scenario),
            place=digest({key: value for key, value in scenario.items() if key not in ("stress", "hardware")}),
            facts={**texts(shown), **shared},
            groups=groups,
            entries=tuple(entries),
            tests={key: tests for key, (_, tests) in ranking.items() if tests},
            notes=(*block_notes(groups, entries, methods), *(arithmetic_notes(methods, here.computed) if here else ())),
        )

    def _entry(
        self,
        label: str,
        members: Sequence[BoardCell],
        groups: Sequence[Group],
        here: Here | None,
        paper: PaperFigures | None,
    ) -> Entry:
        ended = [cell for cell in members if cell.status == "ok"]
        lost = [cell for cell in members if cell.status != "ok"]
        rows = [cell.row for cell in members if cell.row]
        plugin, found = members[0].plugins["aggregator"].name, self.figures(ended, groups)
        roles = roles_of(members)
        printed, formulas = paper.printed(members[0]) if paper else ({}, {})
        shown = {column.metric for group in groups for column in group.columns}
        return Entry(
            aggregator=label,
            plugin=plugin,
            control=tuple(key for key in _scored(members) if role_under(roles, key) == "control"),
            reference="reference" in roles.values(),
            ok=len(ended),
            planned=len(members),
            seeds=len({cell.seed for cell in ended}),
            stale=sum(_row(cell).cell_id in here.stale for cell in ended) if here else 0,
            failures=dict(sorted(Counter(cell.status for cell in lost).items())),
            reasons=tuple(sorted({f"{each.status}: {_why(each)}" for each in rows if each.reason})),
            estimates={
                group.key: {
                    column.metric: estimate(found.get(group.key, {}).get(column.metric, {}), printed.get(column.metric))
                    for column in group.columns
                }
                for group in groups
            },
            formulas={metric: formula for metric, formula in formulas.items() if metric in shown},
            warnings=tuple(sorted({warning for row in rows for warning in row.warnings})),
            cells=tuple(sorted(row.cell_id for row in rows)),
        )


class AccuracyBoard(BaseBoard):
    """Final average accuracy, average incremental accuracy and forgetting per method, one block a scenario."""

    name = "accuracy"
    title = "Accuracy board"

    def groups(self, members: Sequence[BoardCell]) -> tuple[Group, ...]:
        """Returns a group for each task identity and selector, of the metric that ranks and of those that a row has."""
        first, *others = (METRICS[name] for name in _shown(self.name))
        groups, identities, measured = [], _scored(members), set[str]()
        for row in (cell.row for cell in members if cell.row):
            unseen = [each.name for each in others if not all(f"{each.name}/{own}" in measured for own in identities)]
            measured |= metric_values(row, unseen).keys()
        for identity in identities:
            columns = [first, *(each for each in others if f"{each.name}/{identity}" in measured)]
            groups.append(Group(key=identity, columns=tuple(map(_column, columns))))
        return tuple(groups)

    def figures(self, members: Sequence[BoardCell], groups: Sequence[Group]) -> Figures:
        """Returns the metrics of each seed, by task identity."""
        found: Figures = defaultdict(lambda: defaultdict(dict))
        for cell in members:
            for key, value in metric_values(_row(cell), _shown(self.name)).items():
                name, _, identity = key.partition("/")
                found[identity][name][cell.seed] = value.value
        return found


class OverheadBoard(BaseBoard):
    """Seconds, bytes and memory per method; rows of other hardware stand in blocks of their own."""

    name = "overhead"
    title = "Overhead board"
    split: ClassVar = {"hardware": True}
    notes = ("costs have no rank: seconds also depend on what else ran on the machine",)

    def groups(self, members: Sequence[BoardCell]) -> tuple[Group, ...]:
        """Returns the group of all costs, and one of each selector that learns; none if nothing was computed."""
        rows = [_row(cell) for cell in members if cell.status == "ok"]
        labels = sorted({label for row in rows for label in row.cost.selectors})
        keys = {"cost": tuple(_column(METRICS[name]) for name in _shown(self.name))}
        keys |= {f"selector {label}": _SELECTOR_COSTS for label in labels}
        return tuple(Group(key=key, columns=columns, ranked=False) for key, columns in keys.items()) if rows else ()

    def figures(self, members: Sequence[BoardCell], groups: Sequence[Group]) -> Figures:
        """Returns the costs of each seed."""
        costs = {name: cost for name in _shown(self.name) if (cost := METRICS[name].cost)}
        found: Figures = {
            "cost": {name: {each.seed: cost(_row(each)) for each in members} for name, cost in costs.items()}
        }
        for group in groups[1:]:
            label = group.key.partition(" ")[2]
            bills = {each.seed: _row(each).cost.selectors.get(label) for each in members}
            found[group.key] = {
                column.metric: {s: None if bill is None else getattr(bill, column.metric) for s, bill in bills.items()}
                for column in group.columns
            }
        return found


class RobustnessBoard(BaseBoard):
    """FAA under stress against the paired clean cell: mean, worst and loss over stressors and severities.

    A seed counts where the clean cell and every stressed one have a result: methods are compared over the same stress.
    """

    name = "robustness"
    title = "Robustness board"
    split: ClassVar = {"stress": False}

    def groups(self, members: Sequence[BoardCell]) -> tuple[Group, ...]:
        """Returns for each task identity the summary and the details by stressor; none without a stressed cell."""
        alike: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for cell in members:
            alike[_stress(cell)].add((cell.plugins["stress"].name, cell.plugins["stress"].version))
        stresses = sorted({_stress_among(cell, alike[_stress(cell)]) for cell in members} - {""})
        summary = _faa_columns(
            {"stressed": "FAA mean under stress", "worst": "FAA worst", "loss": "FAA loss", "clean": "FAA clean"}
        )
        details = _faa_columns({name: name for name in stresses})
        groups = []
        for identity in _scored(members) if stresses else ():
            groups.append(Group(key=identity, columns=summary))
            groups.append(Group(key=f"{identity}, by stressor", columns=details, ranked=False))
        return tuple(groups)

    def figures(self, members: Sequence[BoardCell], groups: Sequence[Group]) -> Figures:
        """Returns the accuracy of each seed under every stressor, and what it comes to beside the clean cell."""
        found: Figures = {}
        stresses = [column.metric for column in groups[1].columns]
        for identity in _scored(members):
            values: dict[int, dict[str, float | None]] = defaultdict(dict)
            for cell in members:
                faa = metric_values(_row(cell), ("faa",)).get(f"faa/{identity}")
                names = (_stress(cell, full, versioned) for versioned in (False, True) for full in (False, True))
                name = next((each for each in names if each in stresses), "")
                values[cell.seed][name] = faa.value if faa else None
            summary: dict[str, dict[int, float | None]] = defaultdict(dict)
            for seed, own in values.items():
                clean, under = own.get(""), [value for name in stresses if (value := own.get(name)) is not None]
                if clean is None or len(under) < len(stresses):
                    continue
                mean = statistics.fmean(under)
                figures = {"stressed": mean, "worst": min(under), "loss": clean - mean, "clean": clean}
                for key, figure in figures.items():
                    summary[key][seed] = figure
            found[identity] = summary
            found[f"{identity}, by stressor"] = {
                name: {seed: own.get(name) for seed, own in values.items()} for name in stresses
            }
        return found


def _shown(board: str) -> list[str]:
    """Returns the names of the metrics that have a column on a board."""
    return [metric.name for metric in METRICS.values() if metric.board == board]


def _why(row: Row) -> str:
    return f"{row.failure.type}: {row.reason}" if row.failure else row.reason


def _row(cell: BoardCell) -> Row:
    assert cell.row is not None  # it has a result
    return cell.row


def _stress(cell: BoardCell, full: bool = False, versioned: bool = False) -> str:
    """Returns a stressor with its severity, e.g. `label-shift[clients=2]`, and nothing for a clean cell.

    Where it has to be told from others it has its full name, its version, or both: `acme/shift[clients=2] (version 1)`.
    """
    record = cell.plugins["stress"]
    options = ", ".join(f"{name}={value}" for name, value in record.identity.items())
    name = record.name if full else record.name.rpartition("/")[2]
    if record.name == "fcilbench/none":
        return ""
    return name + f"[{options}]" * bool(options) + f" (version {record.version})" * versioned


def _stress_among(cell: BoardCell, alike: Collection[tuple[str, str]]) -> str:
    """Returns the stressor of a cell, told from those that share its short name: names and versions, its own too."""
    name = cell.plugins["stress"].name
    return _stress(cell, len({own for own, _ in alike}) > 1, len({v for own, v in alike if own == name}) > 1)


_SELECTOR_COSTS = tuple(
    Column(metric=name, title=title, unit="bytes", better="lower")
    for name, title in {"bytes_up": "Up", "bytes_down": "Down", "state": "Server state", "module": "Module"}.items()
)
"""Columns of what a selector costs, by the fields of `SelectorCost`."""


def _column(metric: Metric) -> Column:
    return Column(metric=metric.name, title=metric.title, unit=metric.unit, better=metric.better)


def _faa_columns(titles: Mapping[str, str]) -> tuple[Column, ...]:
    """Returns columns of accuracies by their keys; of the `loss` less is better."""
    better: dict[str, Better] = {"loss": "lower"}
    return tuple(
        Column(metric=key, title=title, unit="ratio", better=better.get(key, "higher")) for key, title in titles.items()
    )


def _scored(members: Sequence[BoardCell]) -> list[Scored]:
    """Returns the task identities and selectors under which a scenario is scored, each of which is a group."""
    return scored_order(key for cell in members[:1] for key in cell.params.evaluate)


def _overall(blocks: Sequence[Block]) -> tuple[Overall, ...]:
    """Returns the board of the blocks for each group: over methods that have a rank in every block."""
    first: dict[str, Group] = {group.key: group for block in blocks for group in block.groups if group.ranked}
    found = []
    for key, group in first.items():
        entries = {e.aggregator for block in blocks for e in block.entries if not e.reference}
        ranked = [{e.aggregator: e for e in block.entries if key in e.ranks} for block in blocks]
        ranked = [own for own in ranked if own]
        common = sorted(set.intersection(*map(set, ranked))) if ranked else []
        if len(ranked) < 2 or len(common) < 2:
            continue
        column = group.columns[0]
        values = [align({name: own[name].estimates[key][column.metric].values for name in common})[1] for own in ranked]
        means = [{name: statistics.fmean(seeds) for name, seeds in block.items()} for block in values]
        found.append(
            Overall(
                key=key,
                metric=column.title,
                blocks=len(ranked),
                methods=mean_ranks(means, higher=column.better == "higher"),
                left_out=tuple(sorted(entries - {*common})),
                critical_difference=critical_difference(len(common), len(ranked)),
            )
        )
    return tuple(found)
