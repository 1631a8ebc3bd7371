"""Figures of published boards by name, as a text quotes them: `faa("small-tuned", "eurosat", "none", "ccvr")`.

Every figure is one that a board shows, or one that the statistics of the boards make of its values; nothing is computed
here in another way. A name that no board has is an error that tells the nearest one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from fcilbench.boards.draws import best_so_far, order_kept
from fcilbench.boards.finding import finding, format_p, standing
from fcilbench.boards.model import Block, Board, Column, Entry, Estimate, Group
from fcilbench.boards.records import ResolvedSuite
from fcilbench.boards.render import number
from fcilbench.boards.stats import CONFIDENCE, LEAST_SEEDS, difference, holm, paired_p
from fcilbench.boards.tuning import Spent, spent_on
from fcilbench.errors import UsageError, nearest
from fcilbench.spec.row import Row
from fcilbench.tables import flatten

_ROLES = ("method", "control", "reference", "all")
Test = tuple[str, str, str, str, str]
"""A paired test: board, data, identity and two methods."""


@dataclass(frozen=True)
class Leaderboard:
    """One published folder: its rows by cell id, its boards by name, its resolved suites by digest."""

    name: str
    rows: Mapping[str, Row]
    boards: Mapping[str, Board]
    suites: Mapping[str, ResolvedSuite]


class Family(NamedTuple):
    """Tests that are corrected together by Holm's rule.

    Attributes:
        adjusted: The corrected p value of each test.
        apart: The tests that stay below 5 % after the correction.
    """

    adjusted: Mapping[Test, float]
    apart: Sequence[Test]


class Quotes:
    """What a text can quote of some leaderboards.

    `board` is the folder of a leaderboard. `data` names a scenario by one of its labels, or by several with ` / `
    between them (`eurosat / label-shift`); scenarios without stress come first. `identity` is a task identity or a
    selector (`inferred:ridge`), `method` the label of a method on the board. Accuracies are per cent with one decimal,
    differences of them points, and ± the half width of the 95 % interval.
    """

    def __init__(self, leaderboards: Iterable[Leaderboard]) -> None:
        self._leaderboards = {each.name: each for each in leaderboards}

    def faa(self, board: str, data: str, identity: str, method: str, metric: str = "faa") -> str:
        """Returns a figure of the accuracy board with its interval: `70.1 ± 5.6`."""
        _, entry, found, column = self._accuracy(board, data, identity, method, metric)
        return _quoted(found, column, entry.seeds)

    def mean(self, board: str, data: str, identity: str, method: str, metric: str = "faa") -> float:
        """Returns a mean of the accuracy board as a number for a condition, e.g. 0.701."""
        found = self._accuracy(board, data, identity, method, metric)[2].mean
        assert found is not None  # else there was an error
        return found

    def minus(self, board: str, data: str, identity: str, one: str, other: str) -> str:
        """Returns the paired difference of two methods with its interval: `+1.8 ± 2.6`."""
        gap, column = self._difference(board, data, identity, one, other)
        return _quoted(gap, column, gap.n, sign=True)

    def change(self, before: str, after: str, data: str, identity: str, method: str) -> str:
        """Returns what a method gained from one leaderboard to another on the same scenario: `+10.3 ± 20.1`."""
        old, new = self._block(before, data), self._block(after, data)
        if old.digest != new.digest:
            raise UsageError(f"{before} and {after} have different scenarios of {data}, so there is no difference")
        return self._gain((before, data), (after, data), identity, method)

    def gain(self, board: str, before: str, after: str, identity: str, method: str) -> str:
        """Returns what a method gains from one scenario to another, paired over the seeds: `-13.8 ± 6.2`."""
        return self._gain((board, before), (board, after), identity, method)

    def family(
        self, board: str, data: Sequence[str], identities: Sequence[str], pairs: Sequence[Sequence[str]]
    ) -> Family:
        """Returns the paired tests of pairs of methods, on each data set, under each identity, as one family."""
        tests = [(board, each, key, one, other) for each in data for key in identities for one, other in pairs]
        adjusted = dict(zip(tests, holm([self._raw_p(*test) for test in tests]), strict=True))
        return Family(adjusted, [test for test, p in adjusted.items() if p < 1 - CONFIDENCE])

    def p(self, board: str, data: str, identity: str, one: str, other: str, *, family: Family | None = None) -> str:
        """Returns the p value of the paired t test of two methods: `p = 0.020`; Holm's with the family of the test."""
        return format_p(self._p((board, data, identity, one, other), family))

    def apart(
        self, board: str, data: str, identity: str, one: str, other: str, *, family: Family | None = None
    ) -> bool:
        """Says whether the paired test tells two methods apart at 5 %; by Holm's rule with the family of the test."""
        return self._p((board, data, identity, one, other), family) < 1 - CONFIDENCE

    def ranked(self, board: str, data: str, identity: str, role: str = "method") -> list[str]:
        """Returns methods, best mean first.

        A role is `method` (neither control nor reference under this identity), `control`, `reference` or `all`.
        """
        _known("role", role, _ROLES, board)
        block = self._block(board, data)
        found = [name for name, _ in standing(block, _group(block, identity, board), role)]
        if not found:
            raise UsageError(f"{board} / {data} has no {role} with a result under {identity}")
        return found

    def best(self, board: str, data: str, identity: str, role: str = "method") -> str:
        """Returns the method of a role with the best mean."""
        return self.ranked(board, data, identity, role)[0]

    def worst(self, board: str, data: str, identity: str, role: str = "method") -> str:
        """Returns the method of a role with the worst mean."""
        return self.ranked(board, data, identity, role)[-1]

    def above(self, board: str, data: str, identity: str, method: str) -> list[str]:
        """Returns the methods, without controls and references, whose mean is better than that of a named one."""
        block, _, bar, column = self._accuracy(board, data, identity, method)
        group, sign = _group(block, identity, board), 1 if column.better == "higher" else -1
        means = {e.aggregator: _of(e, group, column).mean for e in block.entries if e.kind(group.key) == "method"}
        assert bar.mean is not None  # else there was an error
        return [name for name, mean in means.items() if mean is not None and sign * mean > sign * bar.mean]

    def loss_under(self, board: str, data: str, identity: str, method: str) -> str:
        """Returns the points that a method loses under stress, the mean over all stressors: `4.0 ± 6.8`."""
        block, where = self._block(board, data, "robustness"), f"the robustness board of {board}"
        entry, group = _entry(block, method, f"{board} / {data}"), _group(block, identity, where)
        column = _column(group, "loss", where)
        found = _of(entry, group, column)
        return _quoted(_defined(found, f"{method} in {board} / {data} has no loss under {identity}"), column, found.n)

    def bytes_up(self, board: str, data: str, method: str) -> str:
        """Returns the bytes that all clients upload in a whole run: `1086 MB`."""
        return self.cost(board, data, method, "bytes_up")

    def cost(self, board: str, data: str, method: str, metric: str) -> str:
        """Returns a figure of the overhead board with its interval.

        It has to be the same on all hardware that a method ran on.
        """
        blocks = self._blocks(board, data, "overhead")
        _known("method", method, (e.aggregator for block in blocks for e in block.entries), f"{board} / {data}")
        shown = set()
        for block in blocks:
            for entry in (each for each in block.entries if each.aggregator == method):
                group = block.groups[0]
                column = _column(group, metric, f"the overhead board of {board}")
                found = _defined(_of(entry, group, column), f"{method} in {board} / {data} has no {metric}")
                shown.add(_quoted(found, column, entry.seeds))
        if len(shown) > 1:
            raise UsageError(
                f"{metric} of {method} in {board} / {data} differs between machines: {', '.join(sorted(shown))}"
            )
        return shown.pop()

    def param(self, board: str, data: str, method: str, path: str) -> str:
        """Returns a value that a method's rows were trained with, also from a lock file, e.g. of `protocol.lr`."""
        block = self._block(board, data)
        cells = _entry(block, method, f"{board} / {data}").cells
        return self._value(board, f"{method} in {board} / {data}", cells, path)

    def fact(self, board: str, data: str, name: str) -> str:
        """Returns what all rows of a scenario share: one of `FACTS`, or a parameter such as `protocol.rounds`."""
        cells = [cell for entry in self._block(board, data).entries for cell in entry.cells]
        return self._value(board, f"{board} / {data}", cells, name)

    def trials(self, board: str, data: str, method: str) -> int:
        """Returns the number of draws that were spent on tuning a method, in all studies that travelled with it."""
        home = self._home(board)
        cells = _entry(self._block(board, data), method, f"{board} / {data}").cells
        found = {spent_on(home.rows[cell], home.suites) for cell in cells}
        if len(found) != 1 or not isinstance(next(iter(found)), Spent):
            told = ", ".join(sorted(map(str, found)))
            raise UsageError(f"{method} in {board} / {data} has no number of trials: {told}")
        (one,) = found
        assert isinstance(one, Spent)
        return one.trials

    def validation(self, board: str, data: str, method: str, draws: int) -> str:
        """Returns the validation score that chose a method's values, as a budget of so many draws buys it: `79.0`.

        One draw has the suite's own values.
        """
        return _tenths(self._bought(board, data, method, draws))

    def tau(self, board: str, data: str, draws: int, more: int) -> str:
        """Returns Kendall's tau of the tuned methods' validation scores at two budgets, by number of draws: `0.67`."""
        tuned = [e.aggregator for e in self._block(board, data).entries if self._draws(board, data, e.aggregator)]
        found = order_kept(*([self._bought(board, data, each, n) for each in tuned] for n in (draws, more)))
        if found is None:
            raise UsageError(f"{board} / {data} has no order of methods by their draws")
        return f"{found:.2f}"

    def stale(self) -> list[str]:
        """Returns the leaderboards that have rows of older code than this checkout."""
        return [
            name
            for name, home in self._leaderboards.items()
            if any(e.stale for board in home.boards.values() for block in board.blocks for e in block.entries)
        ]

    def finding(self, board: str) -> str:
        """Returns what the accuracy board of a leaderboard shows, in one sentence."""
        return finding(self._kind(board, "accuracy"))

    def _home(self, board: str) -> Leaderboard:
        return self._leaderboards[_known("leaderboard", board, self._leaderboards, "this folder")]

    def _kind(self, board: str, kind: str) -> Board:
        boards = self._home(board).boards
        if kind not in boards:
            raise UsageError(f"leaderboard {board} has no {kind} board", hint=f"it has: {', '.join(boards)}")
        return boards[kind]

    def _blocks(self, board: str, data: str, kind: str) -> list[Block]:
        """Returns the blocks that have all labels in `data`; those without stress if there are any."""
        blocks, parts = self._kind(board, kind).blocks, data.split(" / ")
        for part in parts:
            _known("scenario", part, (label for block in blocks for label in block.scenario.values()), board)
        found = [block for block in blocks if {*parts} <= {*block.scenario.values()}]
        if not found:
            raise UsageError(f"no scenario of {board} has all of: {data}", hint="; ".join(b.heading for b in blocks))
        return [block for block in found if block.scenario.get("stress") == "none"] or found

    def _block(self, board: str, data: str, kind: str = "accuracy") -> Block:
        found = self._blocks(board, data, kind)
        if len(found) > 1:
            raise UsageError(
                f"{data} names {len(found)} scenarios of {board}",
                hint=f"name one by more labels: {'; '.join(block.heading for block in found)}",
            )
        return found[0]

    def _accuracy(
        self, board: str, data: str, identity: str, method: str, metric: str = "faa"
    ) -> tuple[Block, Entry, Estimate, Column]:
        block = self._block(board, data)
        entry, group = _entry(block, method, f"{board} / {data}"), _group(block, identity, board)
        column = _column(group, metric, f"the accuracy board of {board}")
        missing = f"{method} in {board} / {data} has no {metric} under {identity}"
        return block, entry, _defined(_of(entry, group, column), missing), column

    def _difference(self, board: str, data: str, identity: str, one: str, other: str) -> tuple[Estimate, Column]:
        _, _, first, column = self._accuracy(board, data, identity, one)
        second = self._accuracy(board, data, identity, other)[2]
        return _common(difference(first, second), f"{one} and {other} in {board} / {data}"), column

    def _gain(self, before: tuple[str, str], after: tuple[str, str], identity: str, method: str) -> str:
        _, _, first, column = self._accuracy(*before, identity, method)
        gap = difference(self._accuracy(*after, identity, method)[2], first)
        what = f"{method} in {' / '.join(before)} and in {' / '.join(after)}"
        return _quoted(_common(gap, what), column, gap.n, sign=True)

    def _draws(self, board: str, data: str, method: str) -> tuple[float, ...]:
        home = self._home(board)
        cells = _entry(self._block(board, data), method, f"{board} / {data}").cells
        return max((best_so_far(home.rows[cell], home.suites) for cell in cells), key=len, default=())

    def _bought(self, board: str, data: str, method: str, draws: int) -> float:
        """Returns the best score after so many draws."""
        best = self._draws(board, data, method)
        if not 0 < draws <= len(best):
            raise UsageError(f"{method} in {board} / {data} has {len(best)} draws, so there is no score after {draws}")
        return best[draws - 1]

    def _raw_p(self, board: str, data: str, identity: str, one: str, other: str) -> float:
        gap, _ = self._difference(board, data, identity, one, other)
        if gap.n < LEAST_SEEDS or gap.constant:
            why = "their difference is the same in all seeds" if gap.constant else f"they share {gap.n} seeds"
            raise UsageError(f"there is no test of {one} and {other} in {board} / {data}: {why}")
        return float(paired_p([list(gap.values.values())])[0])

    def _p(self, test: Test, family: Family | None) -> float:
        if family is None:
            return self._raw_p(*test)
        if test not in family.adjusted:
            raise UsageError(f"{' / '.join(test)} is none of the {len(family.adjusted)} tests of its family")
        return family.adjusted[test]

    def _value(self, board: str, where: str, cells: Sequence[str], name: str) -> str:
        rows = [row for cell in cells if (row := self._home(board).rows[cell]).status == "ok"]
        if not rows:
            raise UsageError(f"{where} has no results")
        if name in FACTS:
            found = {FACTS[name](rows)}
        else:
            params = [flatten(row.params.model_dump(mode="json")) for row in rows]
            _known("parameter", name, [*FACTS, *(key for each in params for key in each)], where)
            found = {_text(each[name]) if name in each else "absent" for each in params}
        if len(found) > 1:
            raise UsageError(f"{name} is not one value in {where}: {', '.join(sorted(found))}")
        return found.pop()


def _one(values: Iterable[int]) -> str:
    return " or ".join(str(value) for value in sorted(set(values)))


FACTS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "seeds": lambda rows: str(len({row.seed for row in rows})),
    "tasks": lambda rows: _one(len(row.classes) for row in rows),
    "classes": lambda rows: _one(sum(map(len, row.classes)) for row in rows),
    "classes_per_task": lambda rows: _one(len(each) for row in rows for each in row.classes),
    "test_samples": lambda rows: _one(sum(row.test_sizes) for row in rows),
    "methods": lambda rows: str(len({row.coords["aggregator"] for row in rows})),
    "date": lambda rows: f"{max(row.ended for row in rows):%Y-%m-%d}",
}
"""What `Quotes.fact` knows of the results of a scenario, beside their parameters."""


def _known(what: str, word: str, legal: Iterable[str], where: str) -> str:
    """Returns a word that is legal; any other one is an error."""
    words = set(legal)
    if word not in words:
        raise UsageError(f"there is no {what} {word!r} in {where}{nearest(str(word), words)}")
    return word


def _entry(block: Block, method: str, where: str) -> Entry:
    entries = {entry.aggregator: entry for entry in block.entries}
    return entries[_known("method", method, entries, where)]


def _group(block: Block, identity: str, where: str) -> Group:
    groups = {group.key: group for group in block.groups if group.ranked}
    return groups[_known("task identity", identity, groups, where)]


def _column(group: Group, metric: str, where: str) -> Column:
    columns = {column.metric: column for column in group.columns}
    return columns[_known("figure", metric, columns, where)]


def _of(entry: Entry, group: Group, column: Column) -> Estimate:
    return entry.estimates[group.key][column.metric]


def _defined(found: Estimate, otherwise: str) -> Estimate:
    if found.mean is None:
        raise UsageError(otherwise)
    return found


def _common(gap: Estimate, what: str) -> Estimate:
    return _defined(gap, f"{what} share no seed, so there is no difference")


def _quoted(found: Estimate, column: Column, seeds: int, *, sign: bool = False) -> str:
    """Returns mean and interval; the number of seeds where some lack the figure, or where one seed has it."""
    assert found.mean is not None
    mean = _figure(found.mean, column)
    plus = "+" if sign and found.mean > 0 and mean.strip("0.") else ""
    half = f" ± {_figure(found.half_width, column)}" if found.half_width is not None else ""
    return f"{plus}{mean}{half}{f' (n={found.n})' if found.n < seeds or found.n == 1 else ''}"


def _figure(value: float, column: Column) -> str:
    if column.unit != "ratio":
        return number(value, column)
    return _tenths(value)


def _tenths(ratio: float) -> str:
    """Returns a ratio in per cent.

    The order of a sum must not decide a digit: 52.45, which may be 52.449999999999996, is 52.5 on every machine.
    """
    tenths = Decimal(f"{100 * ratio:.9f}").quantize(Decimal("0.1"), ROUND_HALF_UP)
    return str(tenths if tenths else abs(tenths))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def scenario_of(leaderboards: Sequence[Leaderboard], board: str, data: str) -> Block:
    """Returns a scenario of a leaderboard's accuracy board by its labels, as `Quotes` finds it.

    Raises:
        UsageError: If there is none, or several.
    """
    return Quotes(leaderboards)._block(board, data)
