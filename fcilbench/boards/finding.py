"""One sentence on what a board shows: its best control, its best other method, and whether the tests tell them apart.

The sentence is made of the board's own figures and tests. It is plain text: a page escapes it like any text of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fcilbench.boards.model import Block, Board, Column, Estimate, Group
from fcilbench.boards.render import format_estimate
from fcilbench.boards.stats import CONFIDENCE, LEAST_SEEDS, alike, difference
from fcilbench.tables import counted, listed

Standing = Sequence[tuple[str, Estimate]]
"""Methods with their figures, best first."""

_NAMED = 3
"""With more scenarios than this a finding counts them instead of naming each."""
_WORDS = {
    "none": "without task identity",
    "inferred": "with the task picked by each method itself",
    "oracle": "with the task told",
}
_COUNTED = {
    "beats": "a method beats the best control in {}",
    "worse": "the best other method is worse than the best control in {}",
    "level": "the tests do not tell the best other method from the best control in {}",
    "untested": "there is no test between them in {}",
    "no control": "no control has a result in {}",
    "controls alone": "controls alone have results in {}",
    "nothing": "there is no result in {}",
}
"""What a finding says of each kind of verdict, with the number of its scenarios."""


class Verdict(NamedTuple):
    """What one scenario shows under one task identity: one of the kinds in `_COUNTED`, and a clause that says it."""

    kind: str
    text: str


def finding(board: Board) -> str:
    """Returns what a board shows in one sentence of plain text; "" if it ranks nothing.

    It is about `none`, the strictest task identity, or else about the first column group that is ranked, and about the
    scenarios without stress if there are any. Each of up to three scenarios has a clause; more of them are counted.
    """
    blocks = [block for block in board.blocks if any(group.ranked for group in block.groups)]
    blocks = [block for block in blocks if block.scenario.get("stress") == "none"] or blocks
    groups = {group.key: group for block in blocks for group in block.groups if group.ranked}
    if not groups:
        return ""
    key = "none" if "none" in groups else next(iter(groups))
    lead = f"{groups[key].columns[0].title} {identity_words(key)}"
    verdicts = [verdict(block, key) for block in blocks]
    if len(blocks) == 1:
        return f"{lead}: {verdicts[0].text}."
    if len(blocks) <= _NAMED:
        parts = [f"{name}: {found.text}" for name, found in zip(_names(blocks), verdicts, strict=True)]
        return f"{lead}: {'; '.join(parts)}."
    counts = Counter(found.kind for found in verdicts)
    parts = [text.format(counts[kind]) for kind, text in _COUNTED.items() if counts[kind]]
    return f"{lead}, in {len(blocks)} scenarios: {'; '.join(parts)}."


def identity_words(key: str) -> str:
    """Returns what a column group is about, in words, e.g. `without task identity`."""
    picked = key.partition(":")[2] if key.startswith("inferred:") else ""
    return f"with the task picked by {picked} for all methods" if picked else _WORDS.get(key, f"under {key}")


def verdict(block: Block, key: str) -> Verdict:
    """Compares the best control of a block with the best other method under one task identity."""
    group = next((group for group in block.groups if group.key == key), None)
    if group is None:
        return Verdict("nothing", f"nothing was scored {identity_words(key)}")
    control, other = standing(block, group, "control"), standing(block, group, "method")
    short = _left_out(block, group, {name for name, _ in (*control, *other)})
    if not control and not other:
        return Verdict("nothing", f"neither a control nor another method has a result{short}")
    if not other:
        text = f"controls alone have results, the best of them is {_shown(block, group, control)}"
        return Verdict("controls alone", text + short)
    if not control:
        return Verdict(
            "no control", f"no control has a result; the best method is {_shown(block, group, other)}{short}"
        )
    found = _compared(block, group, control, other)
    return found._replace(text=found.text + short)


def standing(block: Block, group: Group, role: str) -> list[tuple[str, Estimate]]:
    """Returns the methods of a role with their figures in the first column of a group, best first.

    `role` is `control`, `method` (neither a control in this group nor a reference), `reference` or `all`. Methods with
    an equal mean are in alphabetical order. A method without a figure is left out, and so is one with fewer seeds than
    another of its role.
    """
    column = group.columns[0]
    own = {
        entry.aggregator: entry.estimates[group.key][column.metric]
        for entry in block.entries
        if role in (entry.kind(group.key), "all")
    }
    most = max((each.n for each in own.values()), default=0)
    means = {name: each.mean for name, each in own.items() if each.mean is not None and each.n == most}
    sign = -1 if column.better == "higher" else 1
    # The order of a sum must not decide a place.
    return [(name, own[name]) for name in sorted(means, key=lambda name: (sign * round(means[name], 12), name))]


def format_p(p: float) -> str:
    """Returns a p value as text: `p = 0.020`, and `p < 0.001` below that."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def _compared(block: Block, group: Group, control: Standing, other: Standing) -> Verdict:
    column, (against, reached), (name, figure) = group.columns[0], control[0], other[0]
    gap = difference(figure, reached)
    shown, best = _shown(block, group, other), f"the best control {_shown(block, group, control)}"
    if gap.mean is None:
        return Verdict("untested", f"the best other method {shown} and {best} share no seed")
    by, better = _signed(gap, column), (gap.mean > 0) == (column.better == "higher")
    pair = next((each for each in block.tests.get(group.key, ()) if {each.first, each.second} == {against, name}), None)
    if pair is not None and pair.p < 1 - CONFIDENCE:
        if better:
            return Verdict("beats", f"{shown} beats {best} ({by}, {format_p(pair.p)})")
        return Verdict("worse", f"the best other method {shown} is worse than {best} ({by}, {format_p(pair.p)})")
    if pair is not None:
        text = f"the tests do not tell the best other method {shown} from {best} ({by}, {format_p(pair.p)})"
        return Verdict("level", text)
    mean = "the same mean as" if alike([gap.mean, 0.0]) else f"a {'better' if better else 'worse'} mean than"
    why = _untested(gap, {against: reached, name: figure})
    return Verdict("untested", f"the best other method {shown} has {mean} {best} ({by}), no test: {why}")


def _untested(gap: Estimate, figures: Mapping[str, Estimate]) -> str:
    """Returns why the boards did not test two methods whose paired difference is known."""
    if gap.n < LEAST_SEEDS:
        return counted(gap.n, "common seed")
    if all(each.constant for each in figures.values()):
        return f"{' and '.join(figures)} are the same in all seeds"
    return f"the methods share fewer than {LEAST_SEEDS} seeds"


def _shown(block: Block, group: Group, ranked: Standing) -> str:
    """Returns the first method with its figure, and the others that have the same mean."""
    column, (name, figure) = group.columns[0], ranked[0]
    text, count, seeds = format_estimate(figure, column, max(entry.seeds for entry in block.entries)).partition(" (n=")
    first = round(figure.mean or 0.0, 12)
    tied = [other for other, each in ranked[1:] if round(each.mean or 0.0, 12) == first]
    unit = " %" if column.unit == "ratio" else ""
    return f"{name} ({text}{unit}{count}{seeds}{f'; the same mean as {listed(tied)}' if tied else ''})"


def _signed(gap: Estimate, column: Column) -> str:
    text = format_estimate(gap, column, gap.n)
    return text if text.startswith(("-", "0.00")) else f"+{text}"


def _left_out(block: Block, group: Group, ranked: set[str]) -> str:
    """Names the methods that have a figure of fewer seeds than the best of their role."""
    metric = group.columns[0].metric
    short = [
        entry.aggregator
        for entry in block.entries
        if not entry.reference and entry.aggregator not in ranked and entry.estimates[group.key][metric].n
    ]
    return f"; with fewer seeds and left out: {listed(short)}" if short else ""


def _names(blocks: Sequence[Block]) -> list[str]:
    """Returns names that tell scenarios apart: the first labels in which they differ, or else a part of the digest."""
    axes = [axis for axis in blocks[0].scenario if len({block.scenario.get(axis) for block in blocks}) > 1]
    for count in range(1, len(axes) + 1):
        names = [" / ".join(str(block.scenario.get(axis)) for axis in axes[:count]) for block in blocks]
        if len(set(names)) == len(names):
            return names
    digests = [block.digest.removeprefix("sha256:")[:8] for block in blocks]
    return [f"{block.heading} ({digest})" for block, digest in zip(blocks, digests, strict=True)]
