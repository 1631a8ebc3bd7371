"""Head to head: the paired difference of every two methods of a scenario, with the board's own tests.

Differences are taken seed by seed, so what a seed does to both methods is not in their interval. p values are those of
the board (`Block.tests`): paired t, adjusted by Holm's rule over all pairs of ranked methods.
"""

from __future__ import annotations

from typing import Any

from fcilbench.boards.model import Block, Column, Entry, Estimate, Group
from fcilbench.boards.stats import CONFIDENCE, align, estimate
from fcilbench.charts.parts import best_first
from fcilbench.pages.finding import said

_ROUNDING = 1e-12


def versus(block: Block, group: Group) -> dict[str, Any]:
    """Returns the differences of a column group's first metric for every two methods, the better one first.

    Returns:
        `methods`: names, best first. `pairs`: for each two of them, in the order (0, 1), (0, 2), ..., (1, 2), ... the
        difference of the first minus the second as text, its p value as text and whether that is below 0.05; or `None`
        if they have no seed in common. `tests`: number of pairs behind Holm's rule. `untested`: methods that have no
        rank and therefore no test. `title` of the metric, and whether
        a `higher` one is better.
    """
    column = group.columns[0]
    entries = [
        each
        for each in best_first(block.entries, group.key, column)
        if each.estimates[group.key][column.metric].mean is not None
    ]
    tests = block.tests.get(group.key, ())
    p_values = {frozenset((pair.first, pair.second)): pair.p for pair in tests}
    values = {each.aggregator: each.estimates[group.key][column.metric].values for each in entries}
    ranked, _ = align({e.aggregator: values[e.aggregator] for e in entries if group.key in e.ranks})
    pairs: list[list[Any] | None] = []
    for place, one in enumerate(entries):
        for other in entries[place + 1 :]:
            p = p_values.get(frozenset((one.aggregator, other.aggregator)))
            seeds = {*values[one.aggregator]} & {*values[other.aggregator]}
            seeds &= {*ranked} if p is not None else seeds  # the test is over the seeds of all ranked methods
            if not seeds:
                pairs.append(None)
                continue
            gaps = estimate({seed: values[one.aggregator][seed] - values[other.aggregator][seed] for seed in seeds})
            pairs.append([signed(gaps, column), p_text(p), p is not None and p < 1 - CONFIDENCE])
    names = [each.aggregator for each in entries]
    untested = [each.aggregator for each in entries if group.key not in each.ranks]
    return {"methods": names, "pairs": pairs, "tests": len(tests), "untested": untested} | {
        "title": column.title,
        "higher": column.better == "higher",
    }


def fair_control(block: Block) -> Entry | None:
    """Returns the one method that is a control where all methods have the same task, but not without task identity.

    It is the head of one model, usually FedAvg's: what it takes to answer well once the task is known.
    """
    told = {group.key for group in block.groups if group.key == "oracle" or group.key.startswith("inferred:")}
    found = [each for each in block.entries if told & {*each.control} and "none" not in each.control]
    return found[0] if len(found) == 1 else None


def signed(gap: Estimate, column: Column) -> str:
    """Returns a difference with its sign and interval; what is zero up to rounding has no sign."""
    text = said(gap, column)
    if gap.mean is None or abs(gap.mean) <= _ROUNDING:
        return text.removeprefix("-")
    return text if gap.mean < 0 else f"+{text}"


def p_text(p: float | None) -> str:
    """Returns a p value with three digits; "" if there is none."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
