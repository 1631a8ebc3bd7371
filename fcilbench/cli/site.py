"""`fcilbench site`: the pages of a folder of leaderboards, made from the committed rows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcilbench.cli import console, options
from fcilbench.errors import NothingSelectedError

if TYPE_CHECKING:
    from fcilbench.results.store import Store

HEADS = ("leaderboard", "what", "methods", "seeds", "ok", "computed", "code")
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


def site(
    folder: Annotated[Path, typer.Argument(help="Folder whose subfolders hold rows.jsonl.")] = Path("leaderboards"),
    verbose: options.Verbose = False,
) -> None:
    """Write the pages of a folder of leaderboards: two in each subfolder with rows, and an index.

    README.md has the boards as text; index.html is the report, with charts and every cell. The index is index.html and
    the table in README.md of the folder itself. Pages follow from the rows and from the code of this checkout, whose
    changes make rows stale: the same command writes the same pages on every machine.
    """
    from fcilbench.boards.report import render_index
    from fcilbench.files import write_atomic
    from fcilbench.results.store import Store
    from fcilbench.tables import markdown

    stores = [Store(path.parent) for path in sorted(folder.glob("*/rows.jsonl"))]
    if not stores:
        raise NothingSelectedError(f"no rows in {folder}/*/", hint="`fcilbench results export` writes such a folder")
    lines = [_write_pages(store) for store in stores]
    write_atomic(folder / "index.html", render_index("Leaderboards", HEADS, lines))
    readme = folder / "README.md"
    if readme.is_file():
        head, rule, *rows = markdown(HEADS, lines, range(2, 5))
        linked = [re.sub(r"^\| (\S+)", r"| [\1](\1/README.md)", row) for row in rows]
        table = "\n".join([head, rule, *linked]) + "\n"
        write_atomic(readme, _TABLE.sub(lambda _: table, readme.read_text(encoding="utf-8")))
    console.say(f"wrote the pages of {len(lines)} leaderboards in {folder}")


def _write_pages(store: Store) -> tuple[str, ...]:
    """Writes the pages of one leaderboard and returns its line of the index."""
    from fcilbench.boards.render import render
    from fcilbench.boards.report import render_report
    from fcilbench.cli.board import REPORT, build_board
    from fcilbench.files import write_atomic

    rows, name = list(store.latest().values()), store.root.name
    boards = [board for each in REPORT if (board := build_board(each, rows, store, portable=True)).blocks]
    suites = [store.suite(digest) or {} for digest in sorted({row.suite_digest or "" for row in rows})]
    about = "; ".join(dict.fromkeys(suite["description"] for suite in suites if suite.get("description")))
    head = (
        f"# {name}\n\n{about}\n\nMade from `rows.jsonl` by `fcilbench site`; `index.html` adds charts and every cell.\n"
    )
    write_atomic(store.root / "README.md", "\n".join([head, *(render(board, "md") for board in boards)]))
    write_atomic(store.root / "index.html", render_report(boards, rows, store, title=name))
    counts = Counter(row.status for row in rows)
    stale = sum(entry.stale for block in boards[0].blocks for entry in block.entries)
    return (
        name,
        about or "; ".join(dict.fromkeys(block.heading for block in boards[0].blocks)),
        str(len({row.coords["aggregator"] for row in rows})),
        str(len({row.seed for row in rows})),
        f"{counts['ok']}/{len(rows)}",
        f"{max(row.ended for row in rows):%Y-%m-%d}",
        f"older ({stale} rows)" if stale else "as here",
    )
