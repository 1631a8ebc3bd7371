"""The figures by name: what of a results folder each one shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from fcilbench.boards.build import AccuracyBoard, RobustnessBoard
from fcilbench.boards.model import Block, Board
from fcilbench.boards.records import logs_of, read_suite, rounds_of
from fcilbench.charts import (
    budget,
    bytes,
    critical_difference,
    curves,
    diagnostics,
    forest,
    forgetting,
    loss,
    matrix,
    partition,
    severity,
    sweep,
)
from fcilbench.charts.parts import Data, best_first, ended, group_of
from fcilbench.errors import NothingSelectedError, UsageError, nearest
from fcilbench.results.store import Store
from fcilbench.spec.row import Row

Spread = Callable[[Row], Mapping[str, Any]]
"""Returns how the samples of a row's data are spread over clients, see `fcilbench.charts.partition.data`."""
Shown = tuple[ModuleType, Data, str]
"""A chart, its data and its title."""


@dataclass(frozen=True)
class Chosen:
    """What a figure is made of.

    Attributes:
        store: The results folder, for curves.
        rows: The rows that are shown.
        identity: A task identity or a selector.
        of: Which of several: the metric, the diagnostics, the hyperparameter, the stressor; empty for the usual one.
        spread: Reads the data of a row; without, there is no figure of a partition.
    """

    store: Store
    rows: Sequence[Row]
    identity: str
    of: str = ""
    spread: Spread | None = None

    @cached_property
    def by_id(self) -> dict[str, Row]:
        """The rows by the id of their cells."""
        return {row.cell_id: row for row in self.rows}

    @cached_property
    def board(self) -> Board:
        """The accuracy board of the rows."""
        return AccuracyBoard().build(self.rows)

    @property
    def block(self) -> Block:
        """The one scenario of the rows.

        Raises:
            UsageError: If there are several.
        """
        return _one(self.board, "choose one, e.g. --only dataset:cifar100")

    def pick(self, what: str, there: Sequence[str]) -> str:
        """Returns which of several is shown: what was named, or the only one.

        Raises:
            NothingSelectedError: If there is none.
            UsageError: If there are several, or not the named one.
        """
        if not there:
            raise NothingSelectedError(f"no {what} in these rows")
        if self.of in there or (not self.of and len(there) == 1):
            return self.of or there[0]
        if not self.of:
            raise UsageError(f"there are several: name a {what}", hint=f"--of {', --of '.join(map(repr, there))}")
        raise UsageError(f"no {what} {self.of!r}{nearest(self.of, there)}", hint=f"there is {', '.join(there)}")


def figure(name: str, chosen: Chosen) -> Shown:
    """Returns one of `FIGURES`: its chart, its data and its title.

    Raises:
        UsageError: If there is no such figure, or the rows have more than it shows.
        NothingSelectedError: If the rows have nothing of what it shows.
    """
    if name not in FIGURES:
        raise UsageError(f"there is no figure {name!r}{nearest(name, FIGURES)}", hint=f"figures: {', '.join(FIGURES)}")
    return FIGURES[name](chosen)


def _one(board: Board, hint: str) -> Block:
    if not board.blocks:
        raise NothingSelectedError("no scenario in these rows")
    if len(board.blocks) > 1:
        raise UsageError(f"the figure shows one scenario, here are {len(board.blocks)}", hint=hint)
    return board.blocks[0]


def _forest(chosen: Chosen) -> Shown:
    return forest, forest.data(chosen.block, chosen.identity, chosen.of or None), ""


def _bytes(chosen: Chosen) -> Shown:
    return bytes, bytes.data(chosen.block, chosen.identity, chosen.by_id, chosen.of or None), ""


def _curves(chosen: Chosen) -> Shown:
    return curves, curves.data(chosen.block, chosen.identity, chosen.by_id, _rounds(chosen)), ""


def _rounds(chosen: Chosen) -> curves.Rounds:
    return lambda cell_id: rounds_of(chosen.store, cell_id)


def _loss(chosen: Chosen) -> Shown:
    return loss, loss.data(chosen.block, chosen.identity, chosen.by_id, _rounds(chosen)), ""


def _matrices(chosen: Chosen, module: ModuleType) -> Shown:
    """Returns a figure of the accuracy matrices of one method."""
    block = chosen.block
    found = {
        entry.aggregator: own
        for entry in block.entries
        if (own := [m for row in ended(entry, chosen.by_id) if (m := row.accuracy.get(chosen.identity))])
    }
    if not found:
        raise NothingSelectedError(f"no accuracy matrix under {chosen.identity} in these rows")
    if len(found) > 1:
        names = ", ".join(found)
        raise UsageError(f"the figure shows one method, here are {names}", hint="e.g. --only aggregator:sum")
    ((method, matrices),) = found.items()
    return module, module.data(matrices), f"{method}, {chosen.identity}"


def _diagnostics(chosen: Chosen) -> Shown:
    block = chosen.block

    def logs(cell_id: str) -> Sequence[Mapping[str, Any]]:
        return logs_of(chosen.store, cell_id)

    there = diagnostics.names(block, chosen.by_id, logs)
    named = [name for name in chosen.of.split(",") if name] or [chosen.pick("diagnostic", there)]
    return diagnostics, diagnostics.data(block, chosen.identity, chosen.by_id, logs, named), ""


def _severity(chosen: Chosen) -> Shown:
    board = RobustnessBoard().build(chosen.rows)
    if not board.blocks:
        hint = "the suite's `grid: {stress: [...]}` makes them, e.g. [none, dropout]"
        raise NothingSelectedError("no stressed cells in these rows", hint=hint)
    block = _one(board, "choose one, e.g. --only dataset:eurosat")
    name = chosen.pick("stressor", severity.stressors(block, chosen.by_id))
    return severity, severity.data(block, chosen.identity, chosen.by_id, name), ""


def _sweep(chosen: Chosen) -> Shown:
    name = chosen.pick("hyperparameter with three values", [*sweep.hyperparameters(chosen.block, chosen.by_id)])
    return sweep, sweep.data(chosen.block, chosen.identity, chosen.by_id, name), ""


def _budget(chosen: Chosen) -> Shown:
    """Returns the figure of the studies that travelled with the rows; one that does not list its draws is one point."""
    block = chosen.block
    suites = {digest: read_suite(chosen.store.suite(digest)) for row in chosen.rows if (digest := row.suite_digest)}
    draws: dict[str, list[tuple[int, float | None]]] = {}
    scored: set[str] = set()
    for entry in best_first(block.entries, chosen.identity, group_of(block, chosen.identity).columns[0]):
        studies = {
            rule.study.digest: rule.study
            for row in ended(entry, chosen.by_id)
            if (suite := suites.get(row.suite_digest or ""))
            for rule in suite.tuned
            if rule.study and rule.study.trials and rule.fits(row)
        }
        points = (point for each in studies.values() for point in each.draws or (each,))
        draws[entry.aggregator] = [(each.rounds, each.score) for each in points]
        scored |= {each.scored for each in studies.values() if each.score is not None}
    if len(scored) > 1:
        raise NothingSelectedError(f"the studies were scored by {', '.join(sorted(scored))}, which are not compared")
    return budget, budget.data(draws, next(iter(scored), "")), ""


def _partition(chosen: Chosen) -> Shown:
    if chosen.spread is None:
        raise NothingSelectedError("no partition in the rows: it is drawn from the data set")
    row = min((row for row in chosen.rows if row.seeds), key=lambda row: row.seed, default=None)
    if row is None:
        raise NothingSelectedError("no row has the seed of its partition")
    _ = chosen.block  # of one scenario
    labels = ", ".join(str(row.coords.get(axis, "")) for axis in ("dataset", "partition"))
    return partition, partition.data(chosen.spread(row)), f"{labels}, seed {row.seed}"


FIGURES: Mapping[str, Callable[[Chosen], Shown]] = {
    "forest": _forest,
    "bytes": _bytes,
    "curves": _curves,
    "matrix": lambda chosen: _matrices(chosen, matrix),
    "forgetting": lambda chosen: _matrices(chosen, forgetting),
    "loss": _loss,
    "diagnostics": _diagnostics,
    "severity": _severity,
    "sweep": _sweep,
    "budget": _budget,
    "critical-difference": lambda chosen: (
        critical_difference,
        critical_difference.data(chosen.board, chosen.identity),
        "",
    ),
    "partition": _partition,
}
