"""What was spent on tuning the methods of a board: equal, or who had more, less, or nothing at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fcilbench.boards.draws import bought_notes
from fcilbench.boards.records import ResolvedSuite, Study, place_of, read_suite, tuned_rules
from fcilbench.spec.row import Row
from fcilbench.suite.lock import UNSEALED
from fcilbench.tables import flatten


class Spent(NamedTuple):
    """All that was spent on the values of a method: draws, the rounds that they were allowed, and what scored them."""

    trials: int
    budget: int
    scored: str

    def __str__(self) -> str:
        aim = f" for the largest {self.scored}" if self.scored else ""
        return f"{self.trials} trials and at most {self.budget:,} rounds{aim}"


UNTUNED, IDLE, UNKNOWN = "not tuned", "nothing to tune", "not known"
"""Of a row without tuned values; of a method without hyperparameters; of a row whose studies did not travel with it."""
_WARNINGS = {
    UNTUNED: "not tuned, while others of this scenario are",
    UNKNOWN: "tuned, but the study behind its values did not travel with it, so that its budget is not known",
}


def tuning_notes(
    rows: Sequence[Row], suites: Mapping[str, Mapping[str, Any] | None]
) -> tuple[list[Row], tuple[str, ...]]:
    """Compares what was spent on tuning each method of a scenario, which `suites` tell, by their digest.

    Returns the rows, with a warning each where a method was tuned with another budget or score than most, or not at
    all; and notes on each tuned scenario, on what was spent and on what it bought.
    """
    read = {key: suite for key, raw in suites.items() if (suite := read_suite(raw)) is not None}
    spent = {row.cell_id: spent_on(row, read) for row in rows}
    methods: dict[tuple[str, ...], set[tuple[str, Spent | str]]] = defaultdict(set)
    for row in rows:
        methods[place_of(row)].add((str(row.coords.get("aggregator", "")), spent[row.cell_id]))
    groups = {place: _groups(own) for place, own in methods.items()}
    usual = {place: found[0][0] for place, found in groups.items() if found}
    notes = [_note(place, groups[place], methods[place]) for place in usual]
    notes += [
        f"{' / '.join(place)}: tuned, but no study travelled with the rows: what was spent is not known"
        for place, own in methods.items()
        if place not in usual and UNKNOWN in {kind for _, kind in own}
    ]
    notes += bought_notes(rows, read)
    marked = []
    for row in rows:
        warning = _warning(spent[row.cell_id], usual[place_of(row)]) if place_of(row) in usual else ""
        told = [each for each in (warning, _unsealed(row, read)) if each]
        marked.append(row.model_copy(update={"warnings": [*row.warnings, *told]}) if told else row)
    return marked, tuple(notes)


def spent_on(row: Row, suites: Mapping[str, ResolvedSuite]) -> Spent | str:
    """Returns what was spent on a row's values, in all studies of its method and scenario that travelled with the rows.

    The last rule of the row's own suite says which study gave the values. Studies of the same suite in other lock files
    came before or after it: whoever chose between them saw them all. A row that was trained before its suite was tuned
    is tuned all the same if its values are those that the last study chose: it is the same cell.
    """
    suite = suites.get(row.suite_digest or "")
    kin = [each for each in suites.values() if suite and (each.name, each.protocol) == (suite.name, suite.protocol)]
    own = [rule.study for rule in tuned_rules(row, suites) if rule.study]
    if not row.tuned_from:
        own = [study for each in kin if (study := _chosen(each, row)) is not None]
    if suite is None or not own:
        return UNKNOWN if row.tuned_from else UNTUNED
    if not own[-1].trials:
        return IDLE
    studies = _separate([rule.study for rule in each.tuned if rule.study and rule.fits(row)] for each in kin)
    return Spent(sum(each.trials for each in studies), sum(each.budget for each in studies), own[-1].scored)


def _chosen(suite: ResolvedSuite, row: Row) -> Study | None:
    """Returns the study whose values a suite gives to a row that has just these, though it does not cite it."""
    last = next((rule for rule in reversed(suite.tuned) if rule.study and rule.fits(row)), None)
    if last is None or last.study is None or (last.study.trials and not last.set):
        return None
    return last.study if last.set.items() <= flatten(row.params.model_dump(mode="json")).items() else None


def _unsealed(row: Row, suites: Mapping[str, ResolvedSuite]) -> str:
    """Returns what is said of a row whose values come from a rule that no digest of a lock file covers."""
    own = tuned_rules(row, suites)
    return UNSEALED if own and own[-1].sealed is False else ""


def _separate(suites: Iterable[Sequence[Study]]) -> list[Study]:
    """Returns one record of each study, the last one, from the records in each suite.

    A study that went on has several records, each with more trials, but one in a suite. Two records of two suites may
    be of one study or of two if one has more trials; they count as one, so that no method is said to have had more than
    it had.
    """
    distinct: dict[tuple[str, int, int], tuple[Study, set[int]]] = {}
    for number, records in enumerate(suites):
        for each in records:
            distinct.setdefault((each.digest, each.trials, each.budget), (each, set()))[1].add(number)
    ends: list[Study] = []
    last: list[tuple[int, set[int]]] = []  # of each study: trials of its earliest record, suites that have it
    for study, places in sorted(distinct.values(), key=lambda each: -each[0].trials):
        for number, (trials, known) in enumerate(last):
            if trials > study.trials and not known & places:
                last[number] = study.trials, known | places
                break
        else:
            ends.append(study)
            last.append((study.trials, places))
    return ends


def _groups(methods: Iterable[tuple[str, Spent | str]]) -> list[tuple[Spent, list[str]]]:
    """Returns the methods by what was spent on them, most methods first, then the largest budget."""
    found: dict[Spent, list[str]] = defaultdict(list)
    for name, spent in sorted(methods, key=lambda each: each[0]):
        if isinstance(spent, Spent):
            found[spent].append(name)
    return sorted(found.items(), key=lambda each: (-len(each[1]), [-each[0].trials, -each[0].budget]))


def _note(
    place: tuple[str, ...], groups: list[tuple[Spent, list[str]]], methods: Iterable[tuple[str, Spent | str]]
) -> str:
    rest = {kind: sorted(name for name, spent in methods if spent == kind) for kind in (UNTUNED, UNKNOWN, IDLE)}
    (usual, most), *others = groups
    idle = f"; nothing to tune: {', '.join(rest[IDLE])}" if rest[IDLE] else ""
    if not (others or rest[UNTUNED] or rest[UNKNOWN]):
        return f"{' / '.join(place)}: tuned on held-out training samples with {usual}{idle}"
    parts = [
        f"{_count(most)} had {usual}",
        *(f"{_count(names)} had {own}: {', '.join(names)}" for own, names in others),
    ]
    if names := rest[UNTUNED]:
        parts.append(f"{_count(names)} had none, as values were not tuned: {', '.join(names)}")
    if names := rest[UNKNOWN]:
        parts.append(f"{_count(names)} had a study that did not travel with the rows: {', '.join(names)}")
    return f"{' / '.join(place)}: budgets of tuning, on held-out training samples, differ: {'; '.join(parts)}{idle}"


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} method{'s' * (len(names) > 1)}"


def _warning(spent: Spent | str, usual: Spent) -> str:
    if isinstance(spent, str):
        return _WARNINGS.get(spent, "")
    return "" if spent == usual else f"tuned with {spent}, while most are with {usual}"
