"""What to cite of a board: BibTeX of its rows, and of fcilbench itself (as CITATION.cff has it)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version

from fcilbench.escape import escape_tex
from fcilbench.spec.row import Row

SOFTWARE = "fcilbench: a declarative benchmark suite for Federated Class-Incremental Learning"
AUTHORS = "The fcilbench authors"


def bibtex(title: str, about: str, rows: Sequence[Row]) -> str:
    """Returns two BibTeX entries: one of the board with the date of its newest row, one of fcilbench."""
    newest = max(row.ended for row in rows)
    key = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "board"
    suites = ", ".join(sorted({row.suite for row in rows}))
    board = {
        "title": f"{{{escape_tex(title)}: a board of fcilbench}}",
        "author": f"{{{AUTHORS}}}",
        "year": str(newest.year),
        "month": newest.strftime("%b").lower(),
        "note": escape_tex("; ".join(part for part in (about, f"{len(rows)} cells of {suites}") if part)),
    }
    software = {
        "title": f"{{{SOFTWARE}}}",
        "author": f"{{{AUTHORS}}}",
        "version": version("fcilbench"),
        "year": str(newest.year),
        "note": "Apache-2.0",
    }
    entries = {f"fcilbench-board-{key}": board, "fcilbench": software}
    return "\n".join(_entry(name, fields) for name, fields in entries.items())


def _entry(key: str, fields: dict[str, str]) -> str:
    months = "month"  # BibTeX's own names of months stand without braces
    lines = [f"  {name} = {value if name == months else f'{{{value}}}'}," for name, value in fields.items()]
    return "\n".join([f"@misc{{{key},", *lines, "}", ""])
