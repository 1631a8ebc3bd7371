"""Shows boards in one table of formats: text, Markdown, CSV with a line a figure, versioned JSON, LaTeX and HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fcilbench.boards.model import Block, Board, Column, Entry, Estimate, Group, Rank
from fcilbench.boards.notes import CONTROL_MARK, INTERVAL, REFERENCE_MARK
from fcilbench.errors import UsageError, nearest
from fcilbench.escape import clean, escape_markdown, escape_tex, line, markdown_paragraph, tex_comment, tex_row
from fcilbench.spec.outcome import DATA
from fcilbench.spec.protocol import Protocol
from fcilbench.tables import comma_separated, markdown, text_table, texts

DASH = "–"
_ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
_ALWAYS = ("clients", "rounds", "local_epochs", "batch_size", "precision")
"""Protocol fields that are shown though they have their default."""
_COLUMNS = 13
"""Most columns of a table in Markdown; of a wider one each column group is a table."""
_WORDS = (0, 2)
"""Columns of text: method and failures; the others are figures."""


class Head(NamedTuple):
    """A column of a table; `column` where it holds figures, which rank the group if `ranks`."""

    group: str
    title: str
    text: Callable[[Entry], str]
    column: Column | None = None
    ranks: bool = False


def render(board: Board, form: str = "table", *, width: int = 100) -> str:
    """Returns a board as text in one of `FORMATS`; a `table` has `width` columns where that is possible.

    Raises:
        UsageError: If a board has no such form.
    """
    if form not in FORMATS:
        raise UsageError(f"a board has no form {form!r}{nearest(form, FORMATS)}")
    return FORMATS[form](board, width)


def brief(board: Board) -> Board:
    """Returns what of a board fits one screen: the figure that ranks each column group, without ranks and notes."""
    blocks = [
        block.model_copy(
            update={
                "groups": tuple(
                    group.model_copy(update={"columns": group.columns[:1]})
                    for group in [group for group in block.groups if group.ranked] or block.groups[:1]
                ),
                "entries": tuple(
                    e.model_copy(update={"ranks": {}, "reasons": (), "warnings": ()}) for e in block.entries
                ),
                "notes": (),
            }
        )
        for block in board.blocks
    ]
    return board.model_copy(update={"blocks": tuple(blocks), "notes": (INTERVAL,)})


def format_estimate(estimate: Estimate, column: Column, seeds: int) -> str:
    """Returns mean and interval as boards print them, ratios in per cent: `60.00 ± 24.84`, or a dash if undefined.

    A figure that is defined in fewer than `seeds` seeds says so, and so does a single one, which has no interval.
    """
    if estimate.mean is None:
        return DASH
    mean = number(estimate.mean, column)
    count = f" (n={estimate.n})"
    if estimate.half_width is None:
        return mean + count
    return f"{mean} ± {number(estimate.half_width, column)}{count if estimate.n != seeds else ''}"


def number(value: float, column: Column) -> str:
    """Returns a figure of a column: a ratio in per cent, bytes with their unit (1 MB is 1,000,000), or four digits."""
    if column.unit == "bytes":
        power = next((p for p in (9, 6, 3) if abs(value) >= 10**p), 0)
        return f"{value / 10**power:.4g} {({9: 'GB', 6: 'MB', 3: 'kB', 0: 'B'})[power]}"
    if column.unit != "ratio":
        return f"{value:.4g}"
    text = f"{100 * value:.2f}"
    return "0.00" if text == "-0.00" else text


def format_rank(rank: Rank | None) -> str:
    """Returns a rank as the range of its places: `[1–3] of 14`."""
    if rank is None:
        return DASH
    return f"[{rank.low}–{rank.high}] of {rank.of}" if rank.low != rank.high else f"[{rank.low}] of {rank.of}"


def table_of(block: Block, groups: Sequence[Group]) -> list[Head]:
    """Returns the columns of a block's table: method, results, failures, and of each group its figures and ranks."""
    ranked = {group.key for group in groups if group.ranked}

    def name(entry: Entry) -> str:
        where = [key for key in entry.control if key in ranked]
        mark = f" {CONTROL_MARK}{'' if {*where} >= ranked else ', '.join(where)}" if where else ""
        return entry.aggregator + (f" {REFERENCE_MARK}" if entry.reference else mark)

    heads = [
        Head("", "aggregator", name),
        Head("", "ok", lambda e: f"{e.ok}/{e.planned}{f', {e.stale} stale' if e.stale else ''}"),
        Head("", "not ok", lambda e: ", ".join(f"{status} {count}" for status, count in e.failures.items()) or DASH),
    ]
    for group in groups:
        for column in group.columns:
            heads += _figure_heads(block, group, column)
        if any(group.key in entry.ranks for entry in block.entries):
            heads.append(Head(group.key, "rank", lambda e, key=group.key: format_rank(e.ranks.get(key))))  # type: ignore[misc]
    return heads


def _figure_heads(block: Block, group: Group, column: Column) -> list[Head]:
    def of(entry: Entry) -> Estimate:
        return entry.estimates[group.key][column.metric]

    def text(entry: Entry) -> str:
        shown, formula = format_estimate(of(entry), column, entry.seeds), entry.formulas.get(column.metric)
        return f"{shown} {formula}" if formula else shown

    def printed(value: float | None, sign: bool = False) -> str:
        return DASH if value is None else f"{'+' if sign and value > 0 else ''}{number(value, column)}"

    unit = {"ratio": " %", "": "", "bytes": ""}.get(column.unit, f" [{column.unit}]")
    title = f"{column.title}{unit}{_ARROWS[column.better]}"
    heads = [Head(group.key, title, text, column, column is group.columns[0])]
    if any(of(entry).paper is not None for entry in block.entries):
        heads.append(Head(group.key, "paper", lambda entry: printed(of(entry).paper)))
        heads.append(Head(group.key, "difference", lambda entry: printed(of(entry).difference, sign=True)))
    return heads


def facts_of(block: Block) -> str:
    """Returns what a block's scenario fixes, in one line: what is not at its default, tasks and data."""
    defaults = texts(Protocol().model_dump(mode="json"))
    facts = {key.removeprefix("protocol."): value for key, value in block.facts.items() if key.startswith("protocol.")}
    keep = {key: value for key, value in facts.items() if key in _ALWAYS or value != defaults.get(key)}
    keep["tasks"] = block.facts.get("tasks", "null")
    data = block.facts.get("data.loaded", "null")
    keep["data"] = "not loaded" if data == "null" else data.removeprefix("sha256:")[:12]
    if "hardware" in block.facts:
        keep["hardware"] = block.facts["hardware"]
    return ", ".join(f"{key} {value}" for key, value in keep.items())


def notes_of(block: Block) -> list[str]:
    """Returns a block's notes with the reasons and warnings of its entries; those about the data once for all."""
    reasons = [f"{entry.aggregator} {reason}" for entry in block.entries for reason in entry.reasons]
    pairs = [(entry.aggregator, warning) for entry in block.entries for warning in entry.warnings]
    data = dict.fromkeys(warning for _, warning in pairs if warning.startswith(DATA))
    warnings = [f"{name} warns: {warning}" for name, warning in pairs if warning not in data]
    return [*block.notes, *reasons, *data, *warnings]


def overall_tables(board: Board) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns for each column group the heading and the lines of the board of its blocks."""
    return [
        (
            f"Mean rank over {each.blocks} scenarios, {each.key}: {each.metric} "
            f"(critical difference {each.critical_difference:.2f})",
            [(method.aggregator, f"{method.mean:.2f}") for method in each.methods]
            + [(name, DASH) for name in each.left_out],
        )
        for each in board.overall
    ]


_OVERALL = ("aggregator", "mean rank")


def _text(board: Board, width: int) -> str:
    lines = [line(board.title)]
    for block in board.blocks:
        lines += ["", line(block.heading), *textwrap.wrap(line(facts_of(block)), width)]
        whole = _table(block, block.groups, None)
        fits = max(map(len, whole)) <= width
        for table in [whole] if fits else [_table(block, (group,), width) for group in block.groups]:
            lines += ["", *table]
        notes = notes_of(block)
        lines += ["", *(f"- {line(note)}" for note in notes)] if notes else []
    for heading, rows in overall_tables(board):
        lines += ["", line(heading), "", *text_table([_OVERALL], rows, width=width, right=(1,))]
    return "\n".join([*lines, "", *(f"* {line(note)}" for note in board.notes)]) + "\n"


def group_title(key: str) -> str:
    """Returns the title of a column group: those of costs are no task identities."""
    return key if key == "cost" or key.startswith("selector ") else f"task: {key}"


def _table(block: Block, groups: tuple[Group, ...], width: int | None) -> list[str]:
    heads = table_of(block, groups)
    named = [
        group_title(head.group) if head.group and head.group != (heads[index - 1].group if index else "") else ""
        for index, head in enumerate(heads)
    ]
    right = [index for index in range(len(heads)) if index not in _WORDS]
    rows = [[head.text(entry) for head in heads] for entry in block.entries]
    titles = [head.title for head in heads]
    several = len(groups) > 1 or groups[0].key != "cost"
    return text_table([named, titles] if several else [titles], rows, width=width, right=right)


def _markdown(board: Board) -> str:
    lines = [f"# {escape_markdown(board.title)}", ""]
    for block in board.blocks:
        lines += [f"## {escape_markdown(block.heading)}", "", markdown_paragraph(facts_of(block)), ""]
        whole = table_of(block, block.groups)
        parts = [block.groups] if len(whole) <= _COLUMNS else [(group,) for group in block.groups]
        for groups in parts:
            heads = table_of(block, groups)
            titles = [f"{head.group}: {head.title}" if head.group else head.title for head in heads]
            if len(parts) > 1:
                lines += [f"### {escape_markdown(group_title(groups[0].key))}", ""]
                titles = [head.title for head in heads]
            right = [index for index in range(len(heads)) if index not in _WORDS]
            lines += [*markdown(titles, [[head.text(entry) for head in heads] for entry in block.entries], right), ""]
        lines += [*_items(notes_of(block)), ""]
    for heading, overall in overall_tables(board):
        lines += [f"## {escape_markdown(heading)}", "", *markdown(_OVERALL, overall, (1,)), ""]
    return "\n".join([*lines, "## Notes", "", *_items(board.notes)]) + "\n"


def _items(notes: Iterable[str]) -> list[str]:
    return [f"- {markdown_paragraph(note)}" for note in notes]


_CSV = (
    *("dataset", "backbone", "partition", "stress", "scenario", "aggregator", "control", "ok", "planned", "stale"),
    *("group", "metric", "unit", "better", "mean", "half_width", "n", "low", "high", "paper", "formula", "warnings"),
)


def _csv(board: Board) -> str:
    rows = []
    for block in board.blocks:
        for entry in block.entries:
            for group in block.groups:
                for column in group.columns:
                    found = entry.estimates[group.key][column.metric]
                    rank = entry.ranks.get(group.key) if column is group.columns[0] else None
                    rows.append(
                        (
                            *(block.scenario.get(axis, "") for axis in _CSV[:4]),
                            *(block.digest, entry.aggregator, group.key in entry.control),
                            *(entry.ok, entry.planned, entry.stale),
                            *(group.key, column.metric, column.unit, column.better),
                            *(found.mean, found.half_width, found.n),
                            *((rank.low, rank.high) if rank else (None, None)),
                            *(found.paper, entry.formulas.get(column.metric), "; ".join(map(line, entry.warnings))),
                        )
                    )
    return comma_separated(_CSV, rows)


def _tex(board: Board) -> str:
    """Returns a booktabs table for each block: the best mean of a column is bold, what ties with it is underlined."""
    about = r"needs \usepackage{booktabs}. Bold: best mean. Underlined: not told apart from it."
    lines = [tex_comment(f"{board.title}; {about}")]
    for block in board.blocks:
        heads = [head for head in table_of(block, block.groups) if head.title not in ("ok", "not ok")]
        best = {id(head): best_of(block, head.group, head.column) if head.column else set() for head in heads}
        ranked = {(entry.aggregator, key) for entry in block.entries for key in entry.ranks}
        lines += ["", r"\begin{table}[t]", r"\centering\footnotesize", rf"\caption{{{escape_tex(block.heading)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
        lines += [*_tex_groups(heads), tex_row([escape_tex(head.title) for head in heads]), r"\midrule"]
        for entry in block.entries:
            cells = [
                _tex_cell(head, entry, own, any((name, head.group) in ranked for name in own))
                for head in heads
                for own in (best[id(head)],)
            ]
            lines.append(tex_row(cells))
        lines += [r"\bottomrule", r"\end{tabular}", *map(tex_comment, notes_of(block)), r"\end{table}"]
    return "\n".join([*lines, "", *map(tex_comment, board.notes)]) + "\n"


def best_of(block: Block, key: str, column: Column) -> set[str]:
    """Returns the competitors with the best mean of a column, of those with all seeds; none of fewer than two."""
    if column.better == "neither":
        return set()
    own = {e.aggregator: e.estimates[key][column.metric] for e in block.entries if not e.reference}
    most = max((each.n for each in own.values()), default=0)
    means = {name: each.mean for name, each in own.items() if each.mean is not None and each.n == most}
    if len(means) < 2:
        return set()
    best = (max if column.better == "higher" else min)(means.values())
    return {name for name, mean in means.items() if mean == best}


def _tex_cell(head: Head, entry: Entry, best: set[str], tested: bool) -> str:
    """Returns a cell: bold if it is one of the best; underlined if the tests do not tell it from a best one in them."""
    text = escape_tex(head.text(entry))
    if entry.aggregator in best:
        return rf"\textbf{{{text}}}"
    rank = entry.ranks.get(head.group)
    apart = not (head.ranks and tested and rank is not None and rank.tied)
    return text if apart or not best or entry.reference else rf"\underline{{{text}}}"


def _tex_groups(heads: Sequence[Head]) -> list[str]:
    """Returns a row with the name of each group over all of its columns, and the rules below the names."""
    names, rules, first = [], [], 1
    for name, columns in groupby(heads, key=lambda head: head.group):
        size = len(list(columns))
        names.append(rf"\multicolumn{{{size}}}{{c}}{{{escape_tex(name)}}}" if name else " & " * (size - 1))
        rules += [rf"\cmidrule(lr){{{first}-{first + size - 1}}}"] if name else []
        first += size
    return [" & ".join(names) + r" \\", " ".join(rules)]


FORMATS: Mapping[str, Callable[[Board, int], str]] = {
    "table": _text,
    "md": lambda board, _: _markdown(board),
    "csv": lambda board, _: _csv(board),
    "json": lambda board, _: clean(board.model_dump_json(by_alias=True, indent=2)) + "\n",
    "tex": lambda board, _: _tex(board),
}
