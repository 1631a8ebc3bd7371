"""Text of boards and commands: tables (aligned, Markdown, CSV), nested values by dotted path, times."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fcilbench.escape import escape_csv, escape_markdown, line

_GAP = 2
_LEAST = 12
"""Columns of text become no narrower than this."""


class Link(NamedTuple):
    """A cell of a Markdown table that links to a page; the address is one of `fcilbench.escape.page_link`."""

    text: str
    address: str


def cut(text: str, length: int) -> str:
    """Returns a text of at most `length` characters; a longer one ends in `…`."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def listed(names: Sequence[str]) -> str:
    """Returns names as text: `a, b and c`, and `none` if there are none."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "none"


def flatten(value: Any, path: str = "", *, lists: bool = False) -> dict[str, Any]:
    """Returns the leaves of nested maps (and lists, if asked) by dotted path; an empty map or list is a leaf.

    Example:
        >>> flatten({"a": {"b": 1}, "c": [2, []]}, lists=True)
        {'a.b': 1, 'c.0': 2, 'c.1': []}
    """
    if isinstance(value, Mapping) and value:
        items: Iterable[tuple[Any, Any]] = value.items()
    elif lists and isinstance(value, list) and value:
        items = enumerate(value)
    else:
        return {path: value}
    leaves: dict[str, Any] = {}
    for key, inner in items:
        leaves |= flatten(inner, f"{path}.{key}" if path else str(key), lists=lists)
    return leaves


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the leaves of nested maps as text, by dotted path; what is no text becomes compact JSON.

    Example:
        >>> texts({"protocol": {"rounds": 5}, "tasks": [2, 2]})
        {'protocol.rounds': '5', 'tasks': '[2,2]'}
    """
    return {
        path: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)
        for path, value in flatten(values).items()
    }


def text_table(
    heads: Sequence[Sequence[str]],
    rows: Iterable[Sequence[object]],
    *,
    width: int | None = None,
    right: Collection[int] = (),
) -> list[str]:
    """Returns the lines of a table whose columns are aligned.

    Args:
        heads: Lines of the header; none for a table without one.
        rows: Cells of each row.
        width: Columns of the terminal: text is wrapped to fit where that is possible. `None` wraps nothing.
        right: Numbers of the columns that are aligned to the right; they and the first column are never wrapped.
    """
    top = [[line(cell) for cell in head] for head in heads]
    body = [[line(cell) for cell in row] for row in rows]
    sizes = [max(map(_size, column)) for column in zip(*top, *body, strict=True)] if top or body else []
    widths = _fit(sizes, width, right)
    lines = [text for row in top for text in _row(row, widths, right)]
    if top:
        lines.append((" " * _GAP).join("─" * size for size in widths))
    for row in body:
        lines += _row(row, widths, right)
    return lines


def markdown(headers: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[int] = ()) -> list[str]:
    """Returns the lines of a Markdown table; a cell may be a `Link`."""
    rule = ["---:" if index in right else "---" for index in range(len(headers))]
    body = [_md_row(row) for row in rows]
    return [_md_row(headers), f"| {' | '.join(rule)} |", *body]


def comma_separated(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table as CSV (RFC 4180), see `fcilbench.escape.escape_csv`; `None` is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerows([[escape_csv(cell) for cell in row] for row in [headers, *rows]])
    return out.getvalue().replace("\r\n", "\n")


def _md_row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(_md_cell, cells))} |"


def _md_cell(cell: object) -> str:
    return f"[{escape_markdown(cell.text)}]({cell.address})" if isinstance(cell, Link) else escape_markdown(cell)


def _size(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fit(sizes: list[int], width: int | None, right: Collection[int]) -> list[int]:
    widths = list(sizes)
    while width is not None and (excess := sum(widths) + _GAP * (len(widths) - 1) - width) > 0:
        wide = [index for index in range(1, len(widths)) if index not in right and widths[index] > _LEAST]
        if not wide:
            break
        widest = max(wide, key=lambda index: widths[index])
        others = [widths[index] for index in wide if index != widest]
        widths[widest] = max(_LEAST, widths[widest] - excess, *([max(others) - 1] if others else []))
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    parts = [
        textwrap.wrap(cell, size, break_on_hyphens=False) or [""] if _size(cell) > size else [cell]
        for cell, size in zip(cells, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, parts), default=0)):
        row = []
        for index, (part, size) in enumerate(zip(parts, widths, strict=True)):
            text = part[number] if number < len(part) else ""
            blanks = " " * max(0, size - _size(text))
            row.append(blanks + text if index in right else text + blanks)
        lines.append((" " * _GAP).join(row).rstrip())
    return lines


def counted(number: int, word: str, many: str | None = None) -> str:
    """Returns a number with its word in the singular or plural.

    Example:
        >>> counted(1, "image"), counted(20_000, "image"), counted(2, "class", "classes")
        ('1 image', '20,000 images', '2 classes')
    """
    return f"{number:,} {word if number == 1 else many or f'{word}s'}"


def duration(seconds: float) -> str:
    """Returns a time for people to read.

    Example:
        >>> duration(3725), duration(42.4), duration(0.25)
        ('1h02', '42 s', '0.2 s')
    """
    if seconds >= 3600:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02d}"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
