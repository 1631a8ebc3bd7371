"""Shows a board: on a terminal, as Markdown, as versioned JSON."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from fcilbench.boards.model import Block, Board, Column, Entry, Estimate, Group
from fcilbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FORMATS = ("table", "md", "json")
DASH = "–"
_CANVAS = 2000
_ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}


def render(board: Board, form: str = "table", *, width: int = 100) -> str:
    """Returns a board as text.

    Args:
        board: The board.
        form: `table` (plain text as on a terminal), `md` or `json`.
        width: Columns of a `table`.

    Raises:
        UsageError: If the format does not exist.
    """
    if form == "json":
        return board.model_dump_json(by_alias=True, indent=2) + "\n"
    if form == "md":
        return _markdown(board)
    if form == "table":
        from rich.console import Console

        out = io.StringIO()
        print_board(board, Console(file=out, width=width, color_system=None, force_terminal=False))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
    raise UsageError(f"unknown board format {form!r}{nearest(form, FORMATS)}")


def print_board(board: Board, console: Console) -> None:
    """Prints a board on a terminal: column groups side by side where they fit, else one table a group."""
    from rich.measure import Measurement
    from rich.text import Text

    console.print(Text(board.title, style="bold"))
    for block in board.blocks:
        console.print()
        console.print(Text(block.heading, style="bold cyan"))
        console.print(Text(_facts(block), style="dim"))
        whole = _table(block, block.groups)
        # Measured on a wide canvas: within the console's own width rich would wrap the table to fit.
        wanted = Measurement.get(console, console.options.update(width=_CANVAS), whole).maximum
        fits = wanted <= console.width
        for table in [whole] if fits else [_table(block, (group,)) for group in block.groups]:
            console.print(table)
        for note in _block_notes(block):
            console.print(Text(f"- {note}"), soft_wrap=True)
    console.print()
    for note in board.notes:
        console.print(Text(f"* {note}"), soft_wrap=True)


def format_estimate(estimate: Estimate, column: Column, ok: int) -> str:
    """Returns mean and interval as boards print them; ratios in per cent.

    Args:
        estimate: The figure.
        column: Its column.
        ok: Seeds with a result; a figure that is defined in fewer of them says so.

    Returns:
        `60.00 ± 24.84`, `60.00 (n=1)` for a single seed (which has no interval), or a dash if undefined.
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
    keep = {
        key.removeprefix("protocol."): value
        for key, value in block.facts.items()
        if key.startswith("protocol.") or key == "tasks"
    }
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
    return any(group.identity in entry.ranks for entry in block.entries)


def _headers(block: Block, groups: tuple[Group, ...]) -> list[tuple[str, str]]:
    """Returns `(group, title)` of each column."""
    heads = [("", "aggregator"), ("", "ok"), ("", "not ok")]
    for group in groups:
        heads += [(group.identity, _title(column)) for column in group.columns]
        heads += [(group.identity, "rank")] if _ranked(block, group) else []
    return heads


def _cells(block: Block, entry: Entry, groups: tuple[Group, ...]) -> list[str]:
    cells = [entry.aggregator, f"{entry.ok}/{entry.planned}", _failures(entry)]
    for group in groups:
        found = entry.estimates[group.identity]
        cells += [format_estimate(found[column.metric], column, entry.ok) for column in group.columns]
        if _ranked(block, group):
            rank = entry.ranks.get(group.identity)
            cells.append(DASH if rank is None else f"{rank.rank} of {rank.of}")
    return cells


def _table(block: Block, groups: tuple[Group, ...]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    previous = ""
    for index, (group, title) in enumerate(_headers(block, groups)):
        name = f"task: {group}" if group != previous else ""
        previous = group
        head = f"{name}\n{title}"
        words = index in (0, 2)  # method and failures may wrap, figures may not
        table.add_column(escape(head), justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for entry in block.entries:
        table.add_row(*(escape(text) for text in _cells(block, entry, groups)))
    return table


def _markdown(board: Board) -> str:
    lines = [f"# {board.title}", ""]
    for block in board.blocks:
        heads = [f"{group}: {title}" if group else title for group, title in _headers(block, block.groups)]
        lines += [f"## {_plain(block.heading)}", "", _plain(_facts(block)), "", _md_row(heads)]
        lines.append(_md_row(["---" if index in (0, 2) else "---:" for index in range(len(heads))]))
        lines += [_md_row(_cells(block, entry, block.groups)) for entry in block.entries]
        lines += ["", *(f"- {_plain(note)}" for note in _block_notes(block)), ""]
    return "\n".join([*lines, "## Notes", "", *(f"- {_plain(note)}" for note in board.notes)]) + "\n"


def _md_row(cells: list[str]) -> str:
    return f"| {' | '.join(_plain(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _plain(text: str) -> str:
    """Keeps a value on its line and out of Markdown's and HTML's syntax."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")
