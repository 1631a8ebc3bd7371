"""Shows a board: as text, as Markdown, as versioned JSON, as CSV with one line a figure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from fcilbench.boards.model import Block, Board, Column, Entry, Estimate, Group
from fcilbench.boards.scenario import as_facts
from fcilbench.errors import UsageError, nearest
from fcilbench.spec.protocol import Protocol
from fcilbench.tables import clean, comma_separated, escape_markdown, markdown, text_table

FORMS = ("table", "md", "json", "csv")
DASH = "–"
_ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
_ALWAYS = ("clients", "rounds", "local_epochs", "batch_size", "precision")
"""Protocol fields that are shown though they have their default."""
_WORDS = (0, 2)
"""Columns of text: method and failures; the others are figures."""


def render(board: Board, form: str = "table", *, width: int = 100) -> str:
    """Returns a board as text in one of `FORMS`; a `table` has `width` columns where that is possible.

    Raises:
        UsageError: If a board has no such form.
    """
    if form == "json":
        return clean(board.model_dump_json(by_alias=True, indent=2)) + "\n"
    if form == "md":
        return _markdown(board)
    if form == "csv":
        return comma_separated(_CSV, _figures(board))
    if form == "table":
        return _text(board, width)
    raise UsageError(f"a board has no form {form!r}{nearest(form, FORMS)}")


def format_estimate(estimate: Estimate, column: Column, ok: int) -> str:
    """Returns mean and interval as boards print them, ratios in per cent: `60.00 ± 24.84`, or a dash if undefined.

    A figure that is defined in fewer than the `ok` seeds says so, and so does a single one, which has no interval.
    """
    if estimate.mean is None:
        return DASH
    mean = _number(estimate.mean, column)
    count = f" (n={estimate.n})"
    if estimate.half_width is None:
        return mean + count
    return f"{mean} ± {_number(estimate.half_width, column)}{count if estimate.n != ok else ''}"


def _number(value: float, column: Column) -> str:
    if column.unit != "ratio":
        return f"{value:.4g}"
    text = f"{100 * value:.2f}"
    return "0.00" if text == "-0.00" else text


def _title(column: Column) -> str:
    unit = " %" if column.unit == "ratio" else f" [{column.unit}]" if column.unit else ""
    return f"{column.title}{unit}{_ARROWS[column.better]}"


def _facts(block: Block) -> str:
    defaults = as_facts(Protocol().model_dump(mode="json"))
    facts = {key.removeprefix("protocol."): value for key, value in block.facts.items() if key.startswith("protocol.")}
    keep = {key: value for key, value in facts.items() if key in _ALWAYS or value != defaults.get(key)}
    keep["tasks"] = block.facts.get("tasks", "null")
    data = block.facts.get("data.loaded", "null")
    keep["data"] = "not loaded" if data == "null" else data.removeprefix("sha256:")[:12]
    return ", ".join(f"{key} {value}" for key, value in keep.items())


def _failures(entry: Entry) -> str:
    return ", ".join(f"{status} {count}" for status, count in entry.failures.items()) or DASH


def _block_notes(block: Block) -> list[str]:
    reasons = [f"{entry.aggregator} {reason}" for entry in block.entries for reason in entry.reasons]
    warnings = [f"{entry.aggregator} warns: {warning}" for entry in block.entries for warning in entry.warnings]
    return [*block.notes, *reasons, *warnings]


def _ranked(block: Block, group: Group) -> bool:
    return any(group.key in entry.ranks for entry in block.entries)


def _headers(block: Block, groups: tuple[Group, ...]) -> list[tuple[str, str]]:
    """Returns `(group, title)` of each column."""
    heads = [("", "aggregator"), ("", "ok"), ("", "not ok")]
    for group in groups:
        heads += [(group.key, _title(column)) for column in group.columns]
        heads += [(group.key, "rank")] if _ranked(block, group) else []
    return heads


def _cells(block: Block, entry: Entry, groups: tuple[Group, ...]) -> list[str]:
    cells = [entry.aggregator, f"{entry.ok}/{entry.planned}", _failures(entry)]
    for group in groups:
        found = entry.estimates[group.key]
        cells += [format_estimate(found[column.metric], column, entry.ok) for column in group.columns]
        if _ranked(block, group):
            rank = entry.ranks.get(group.key)
            cells.append(DASH if rank is None else f"{rank.rank} of {rank.of}")
    return cells


def _text(board: Board, width: int) -> str:
    lines = [board.title]
    for block in board.blocks:
        lines += ["", block.heading, *textwrap.wrap(_facts(block), width)]
        whole = _table(block, block.groups, None)
        fits = max(map(len, whole)) <= width
        for table in [whole] if fits else [_table(block, (group,), width) for group in block.groups]:
            lines += ["", *table]
        lines += ["", *(f"- {note}" for note in _block_notes(block))]
    return clean("\n".join([*lines, "", *(f"* {note}" for note in board.notes)])) + "\n"


def _table(block: Block, groups: tuple[Group, ...], width: int | None) -> list[str]:
    heads = _headers(block, groups)
    named = [
        f"task: {group}" if group and group != (heads[index - 1][0] if index else "") else ""
        for index, (group, _) in enumerate(heads)
    ]
    right = [index for index in range(len(heads)) if index not in _WORDS]
    rows = [_cells(block, entry, groups) for entry in block.entries]
    return text_table([named, [title for _, title in heads]], rows, width=width, right=right)


def _markdown(board: Board) -> str:
    lines = [f"# {board.title}", ""]
    for block in board.blocks:
        heads = [f"{group}: {title}" if group else title for group, title in _headers(block, block.groups)]
        right = [index for index in range(len(heads)) if index not in _WORDS]
        rows = [_cells(block, entry, block.groups) for entry in block.entries]
        lines += [f"## {escape_markdown(block.heading)}", "", escape_markdown(_facts(block)), ""]
        lines += [*markdown(heads, rows, right), "", *_items(_block_notes(block)), ""]
    return "\n".join([*lines, "## Notes", "", *_items(board.notes)]) + "\n"


def _items(notes: Iterable[str]) -> list[str]:
    return [f"- {escape_markdown(note)}" for note in notes]


_CSV = (
    *("dataset", "backbone", "partition", "stress", "scenario", "aggregator", "ok", "planned"),
    *("group", "metric", "unit", "better", "mean", "half_width", "n", "rank"),
)


def _figures(board: Board) -> list[tuple[object, ...]]:
    return [
        (
            *(block.scenario.get(axis, "") for axis in _CSV[:4]),
            *(block.digest, entry.aggregator, entry.ok, entry.planned),
            *(group.key, column.metric, column.unit, column.better, found.mean, found.half_width, found.n),
            entry.ranks[group.key].rank if group.key in entry.ranks and column is group.columns[0] else None,
        )
        for block in board.blocks
        for entry in block.entries
        for group in block.groups
        for column in group.columns
        for found in (entry.estimates[group.key][column.metric],)
    ]
