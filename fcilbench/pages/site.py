"""The pages of a folder of leaderboards: two for each folder with rows, an index of them, and the code of all pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from fcilbench.boards.folder import REPORT, build_boards
from fcilbench.boards.notes import coverage_notes
from fcilbench.boards.prose import TEMPLATE, Markdown, read_template, render_prose
from fcilbench.boards.quotes import Leaderboard, scenario_of
from fcilbench.boards.records import is_printable, read_suite
from fcilbench.boards.render import render
from fcilbench.charts import forest
from fcilbench.charts.draw import drawn, svg
from fcilbench.charts.theme import LIGHT
from fcilbench.errors import NothingSelectedError, UsageError, nearest
from fcilbench.escape import escape_markdown, markdown_paragraph, page_link
from fcilbench.files import write_atomic
from fcilbench.pages.index import Line, line_of, render_index
from fcilbench.pages.report import Beside, render_report, site_code
from fcilbench.results.store import Store
from fcilbench.tables import Link, markdown

_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)
_MADE = "Made from `rows.jsonl` by `fcilbench site`; `index.html` adds charts and every cell.\n"
_PICTURE = 640
"""Width of a picture, in pixels."""
_CURRENT = "as here"
_HEADS = ("leaderboard", "what", "methods", "seeds", "ok", "computed", "code")


def write_site(folder: Path) -> int:
    """Writes the pages of each leaderboard in a folder, and an index of them; returns their number.

    The index is `index.html`, and the folder's `README.md`: made from `README.md.jinja` if there is one
    (`fcilbench.boards.prose`), or else the table in it if it has one. Both name first the leaderboards whose rows are
    all of this checkout's code, and of them the one with most results. `charts.js` is the code of all pages.

    Raises:
        NothingSelectedError: If no subfolder has rows.
        UsageError: If the template is wrong, or claims what the rows do not bear out; `README.md` stays as it was.
    """
    # A link could lead the pages into another folder, and what it names onto them.
    paths = [path for path in sorted(folder.glob("*/rows.jsonl")) if path.is_file()]
    stores = [Store(path.parent) for path in paths if not (path.is_symlink() or path.parent.is_symlink())]
    pages = sorted((page for store in stores if (page := _write_pages(store))), key=_standing)
    if not pages:
        raise NothingSelectedError(
            f"no rows in {folder}/*/", hint="`fcilbench results export` writes such a folder; links are not followed"
        )
    lines = [line for line, _ in pages]
    write_atomic(folder / "charts.js", site_code())
    write_atomic(folder / "index.html", render_index("Leaderboards", lines))
    linked = [
        (Link(line.name, page_link(line.name, "README.md")), line.about, *(text for _, text in line.facts))
        for line in lines
    ]
    table = "\n".join(markdown(_HEADS, linked, range(2, 5)))
    readme, template = folder / "README.md", read_template(folder)
    if template is not None:
        pictures = _Pictures([own for _, own in pages])
        more = {"forest": pictures.forest}
        write_atomic(readme, render_prose(template, pictures.leaderboards, table, folder / TEMPLATE, more))
        for file, text in pictures.drawn.items():
            write_atomic(folder / file, text)
    elif readme.is_file():
        write_atomic(readme, _TABLE.sub(lambda _: f"{table}\n", readme.read_text(encoding="utf-8")))
    return len(lines)


class _Pictures:
    """The pictures that a template of `README.md` asks for, in its order: names of files are never a template's."""

    def __init__(self, leaderboards: Sequence[Leaderboard]) -> None:
        self.leaderboards, self.drawn = leaderboards, dict[str, str]()

    def forest(self, board: str, data: str, identity: str) -> Markdown:
        """Returns an image of a scenario's forest plot: methods by their score, best first."""
        block, file = scenario_of(self.leaderboards, board, data), f"picture-{len(self.drawn) + 1}.svg"
        if identity not in {group.key for group in block.groups}:
            keys = [group.key for group in block.groups]
            raise UsageError(f"{board} has no task identity {identity!r}{nearest(identity, keys)}")
        title = f"{board}: {data}, task identity {identity}"
        self.drawn[file] = svg(drawn(forest, forest.data(block, identity), LIGHT, title, _PICTURE).to_dict())
        return Markdown(f"![{escape_markdown(title)}: scores with intervals, best first]({file})")


def _standing(page: tuple[Line, Leaderboard]) -> tuple[bool, int]:
    line, own = page
    return dict(line.facts)["code"] != _CURRENT, -sum(row.status == "ok" for row in own.rows.values())


def _write_pages(store: Store) -> tuple[Line, Leaderboard] | None:
    """Writes the pages of one leaderboard; returns its line of the index and what it holds.

    `None` if no row can be printed.
    """
    rows, name = list(store.latest().values()), store.root.name
    if not any(map(is_printable, rows)):
        return None
    built = {name: b for name, b in build_boards(REPORT, rows, store, portable=True).items() if b.blocks}
    boards = list(built.values())
    suites = {digest: store.suite(digest) for digest in sorted({row.suite_digest or "" for row in rows})}
    # A suite that was changed between two runs of its cells has the description of the last.
    newest = {row.suite: read_suite(suites[row.suite_digest or ""]) for row in sorted(rows, key=lambda row: row.ended)}
    about = "; ".join(dict.fromkeys(suite.description for suite in newest.values() if suite and suite.description))
    head = [f"# {escape_markdown(name)}", "", markdown_paragraph(about), "", _MADE]
    write_atomic(store.root / "README.md", "\n".join([*head, *(render(board, "md") for board in boards)]))
    locks = sorted(path.name for path in store.root.glob("*.lock.yaml") if path.is_file() and not path.is_symlink())
    links = {"All boards": "../index.html", "Rows": "rows.jsonl", "As text": "README.md"}
    links |= {name: quote(name) for name in locks}
    beside = Beside(about, tuple(links.items()), f"{store.root.parent.name}/{name}")
    write_atomic(store.root / "index.html", render_report(boards, rows, store, name, beside))
    counts = Counter(row.status for row in rows)
    stale = sum(entry.stale for board in boards[:1] for block in board.blocks for entry in block.entries)
    facts = (
        str(len({row.coords.get("aggregator", "") for row in rows})),
        str(len({row.seed for row in rows})),
        f"{counts['ok']}/{len(rows)}{', of a part of the suite' * bool(coverage_notes(rows, suites))}",
        f"{max(row.ended for row in rows):%Y-%m-%d}",
        f"older ({stale} rows)" if stale else _CURRENT,
    )
    what = about or "; ".join(dict.fromkeys(block.heading for board in boards[:1] for block in board.blocks))
    line = line_of(name, what, tuple(zip(_HEADS[2:], facts, strict=True)), built.get("accuracy"), rows)
    read = {digest: suite for digest, raw in suites.items() if (suite := read_suite(raw))}
    return line, Leaderboard(name, {row.cell_id: row for row in rows}, built, read)
