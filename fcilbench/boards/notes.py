"""What a reader of a board must know: few seeds, failures, undefined figures, what differs between blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fcilbench.boards.model import Block, Entry, Group
from fcilbench.boards.scenario import METHOD_FIELDS, Sample
from fcilbench.boards.stats import LEAST_SEEDS


def block_notes(
    groups: Sequence[Group], entries: Sequence[Entry], methods: Mapping[str, Sequence[Sample]]
) -> tuple[str, ...]:
    """Returns the notes of one block.

    Args:
        groups: Its column groups.
        entries: Its methods.
        methods: The samples of each method, by label.
    """
    return (
        *_rank_notes(groups, entries),
        *_seed_notes(entries, methods),
        *_undefined_notes(groups, entries),
        *_method_notes(methods),
    )


def board_notes(blocks: Sequence[tuple[Block, Mapping[str, str]]]) -> tuple[str, ...]:
    """Returns the notes of a whole board.

    Args:
        blocks: Each block with its flattened scenario.
    """
    if not blocks:
        return ("no rows to show",)
    notes = []
    if len(blocks) > 1:
        notes.append(
            f"{len(blocks)} scenarios in blocks of their own: data or protocol differ, so nothing is compared or "
            "averaged between blocks"
        )
    same_labels: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for block, facts in blocks:
        same_labels[block.heading].append(facts)
    for label, found in same_labels.items():
        if len(found) > 1:
            notes.append(f"{label} stands in {len(found)} blocks, which differ in {_differences(found)}")
    if any(len(block.groups) > 1 for block, _ in blocks):
        notes.append(
            "column groups are task identities (what a method is told of a test sample's task); never ranked together"
        )
    notes.append("± is the half width of the 95 % confidence interval of the mean over seeds (Student t)")
    return tuple(notes)


def _differences(facts: Sequence[Mapping[str, str]]) -> str:
    keys = sorted({key for fact in facts for key in fact})
    parts = []
    for key in keys:
        values = [_short(fact.get(key, "absent")) for fact in facts]
        if len(set(values)) > 1:
            parts.append(f"{key} ({' | '.join(dict.fromkeys(values))})")
    return ", ".join(parts)


def _short(value: str, length: int = 24) -> str:
    return value if len(value) <= length else f"{value[: length - 1]}…"


def _rank_notes(groups: Sequence[Group], entries: Sequence[Entry]) -> list[str]:
    notes = []
    for group in groups:
        metric = group.columns[0].metric
        counts = {entry.aggregator: entry.estimates[group.identity][metric].n for entry in entries}
        few = [f"{name} n={n}" for name, n in counts.items() if n < LEAST_SEEDS]
        ranked = any(group.identity in entry.ranks for entry in entries)
        if few:
            notes.append((group.identity, f"n < {LEAST_SEEDS}: no rank ({', '.join(few)})"))
        elif not ranked and len(entries) > 1:
            notes.append((group.identity, f"no rank: the methods share fewer than {LEAST_SEEDS} seeds"))
        if ranked:
            text = (
                f"rank = 1 + methods significantly better in {group.columns[0].title} "
                "(paired t over common seeds, Holm-corrected, p < 0.05); ties share a rank"
            )
            notes.append((group.identity, text))
    return _merged(notes, groups)


def _merged(notes: Sequence[tuple[str, str]], groups: Sequence[Group]) -> list[str]:
    """Says once what holds for every task identity alike; other notes name theirs."""
    by_text: dict[str, list[str]] = defaultdict(list)
    for identity, text in notes:
        by_text[text].append(identity)
    return [text if len(found) == len(groups) else f"{', '.join(found)}: {text}" for text, found in by_text.items()]


def _seed_notes(entries: Sequence[Entry], methods: Mapping[str, Sequence[Sample]]) -> list[str]:
    notes = [
        f"{entry.aggregator}: figures cover {entry.ok} of {entry.planned} planned seeds"
        for entry in entries
        if 0 < entry.ok < entry.planned
    ]
    seeds = {frozenset(s.seed for s in group if s.status == "ok") for group in methods.values()} - {frozenset()}
    if len(seeds) > 1:
        notes.append("methods have results on different seeds: compare their means with care")
    return notes


def _undefined_notes(groups: Sequence[Group], entries: Sequence[Entry]) -> list[str]:
    notes = []
    for group in groups:
        for column in group.columns:
            counts = [(entry, entry.ok - entry.estimates[group.identity][column.metric].n) for entry in entries]
            gaps = [f"{entry.aggregator} in {count} of {entry.ok} cells" for entry, count in counts if count]
            if gaps:
                notes.append((group.identity, f"{column.title} is undefined (–), not 0: {', '.join(gaps)}"))
    return _merged(notes, groups)


def _method_notes(methods: Mapping[str, Sequence[Sample]]) -> list[str]:
    notes = []
    for field in METHOD_FIELDS:
        values = {label: group[0].params.protocol.get(field) for label, group in sorted(methods.items())}
        if len(set(values.values())) > 1:
            notes.append(
                f"{field} is set per method: {', '.join(f'{k} {v:g}' for k, v in values.items() if v is not None)}"
            )
    for label, group in sorted(methods.items()):
        sources = {sample.code_digest for sample in group if sample.code_digest is not None}
        if len(sources) > 1:
            notes.append(f"{label}: its rows come from {len(sources)} versions of the plugins' source")
    commits = {sample.commit for group in methods.values() for sample in group if sample.commit is not None}
    if len(commits) > 1:
        # What runs the plugins is in no digest.
        notes.append(f"rows come from {len(commits)} commits of fcilbench: {', '.join(s[:7] for s in sorted(commits))}")
    return notes
