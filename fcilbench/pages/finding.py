"""The first sentence of a page: whether a method is above the best control, computed from the rows that are shown.

Means alone decide who is above. Whether the seeds tell it is what the boards test: paired t tests of all methods over
their common seeds, with Holm's rule over all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fcilbench.boards.model import Block, Column, Entry, Estimate
from fcilbench.boards.render import DASH, number
from fcilbench.boards.stats import CONFIDENCE, rank_entries
from fcilbench.charts.parts import best_first
from fcilbench.pages.places import question
from fcilbench.tables import listed

SHOWN = 4
"""Places that a sentence names one by one."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Found:
    """What one scenario says of one metric.

    Attributes:
        control: The control with the best mean and its text; `None` if there is none.
        method: The method with the best mean and its text; with it the methods that have the same mean.
        above: Methods whose mean is better than that of the best control.
        told: Those of them of which the seeds tell it.
        methods: Number of methods with a figure.
    """

    place: str
    control: tuple[str, str] | None
    method: tuple[str, str]
    above: tuple[str, ...]
    told: tuple[str, ...]
    methods: int


def found_in(block: Block, place: str, task: str, column: Column) -> Found | None:
    """Returns what a block says of a metric under a task identity; `None` if no method has a figure."""
    if not any(group.key == task and column in group.columns for group in block.groups):
        return None
    entries = [e for e in best_first(block.entries, task, column) if _of(e, task, column).mean is not None]
    methods, controls = (_whole(entries, role, task, column) for role in ("method", "control"))
    control = controls[0] if controls else None
    if not methods:
        return None
    above = [entry for entry in methods if control and _gain(entry, control, task, column) > _ROUNDING]
    told = _told(block, control, task, column) if control else set()
    return Found(
        place=place,
        control=(control.aggregator, said(_of(control, task, column), column)) if control else None,
        method=(_first(methods, task, column), said(_of(methods[0], task, column), column)),
        above=tuple(entry.aggregator for entry in above),
        told=tuple(entry.aggregator for entry in above if entry.aggregator in told),
        methods=len(methods),
    )


def _whole(entries: Sequence[Entry], role: str, task: str, column: Column) -> list[Entry]:
    """Returns the entries of a role, but not those with fewer seeds than another one of it, as in the boards' words."""
    own = [entry for entry in entries if entry.kind(task) == role]
    most = max((_of(entry, task, column).n for entry in own), default=0)
    return [entry for entry in own if _of(entry, task, column).n == most]


def sentence(found: Sequence[Found], task: str, stress: str, column: Column) -> tuple[str, str]:
    """Returns the finding of some scenarios: what is set in bold, and the rest."""
    if not found:
        return "Nothing was measured for this choice.", ""
    what = f"in {column.title} {question(task)}" + ("" if stress == "none" else f", under {stress}")
    held = [each for each in found if each.control]
    above = "below" if column.better == "lower" else "above"
    if not held:
        lead = f"{'Lowest' if column.better == 'lower' else 'Highest'} {column.title}"
        what = what.removeprefix(f"in {column.title} ")
    elif len(held) == 1:
        lead = _one(held[0], above)
    else:
        with_one = [each for each in held if each.above]
        told = [each for each in held if each.told]
        lead = f"No method is {above} the best control in any of {len(held)} scenarios"
        if with_one:
            lead = f"In {len(with_one)} of {len(held)} scenarios a method is {above} the best control"
            lead += f", and in {len(told) or 'none'} of them the seeds tell it"
    parts = [_part(each) for each in found[:SHOWN]]
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    figures = f"{'; '.join(parts)}{more}{' %' if column.unit == 'ratio' else ''}."
    return lead, f" {what}: {figures}".replace(" ± ", "\u00a0±\u00a0")


def _one(found: Found, above: str) -> str:
    if not found.above:
        return f"No method is {above} the best control"
    some = found.above[0] if len(found.above) == 1 else f"{len(found.above)} of {found.methods} methods"
    told = "the seeds tell it" if len(found.above) == 1 else f"the seeds tell it of {len(found.told)}"
    doubt = told if found.told else "the seeds do not tell it"
    return f"{some} {'is' if len(found.above) == 1 else 'are'} {above} the best control, and {doubt}"


def _part(found: Found) -> str:
    control = f"{' '.join(found.control)} against " if found.control else ""
    return f"{found.place} {control}{' '.join(found.method)}"


def _first(methods: Sequence[Entry], task: str, column: Column) -> str:
    """Returns the name of the first method, and those of the methods that are level with it."""
    first, *others = methods
    level = [each.aggregator for each in others if abs(_gain(first, each, task, column)) <= _ROUNDING]
    return f"{first.aggregator}, level with {listed(level)}," if level else first.aggregator


def _told(block: Block, control: Entry, task: str, column: Column) -> set[str]:
    """Returns the methods that are significantly better than the control, by the tests of the boards."""
    _, tests = rank_entries(block.entries, task, column)
    return {pair.first for pair in tests if pair.second == control.aggregator and pair.p < 1 - CONFIDENCE}


def _gain(entry: Entry, other: Entry, task: str, column: Column) -> float:
    one, two = _of(entry, task, column).mean, _of(other, task, column).mean
    assert one is not None  # entries without a mean were left out
    assert two is not None
    return two - one if column.better == "lower" else one - two


def said(found: Estimate, column: Column) -> str:
    """Returns mean and interval as a sentence names them, with the digits of the boards."""
    if found.mean is None:
        return DASH
    half = "" if found.half_width is None else f" ± {number(found.half_width, column)}"
    return f"{number(found.mean, column)}{half}"


def _of(entry: Entry, task: str, column: Column) -> Estimate:
    return entry.estimates[task][column.metric]
