"""The page of a results folder: all boards, their charts and every cell.

A report is one file that needs nothing else, to be sent to somebody. The pages of a site share the file `charts.js`
beside them, which holds the library and the pages' own code. Both work from a file and from a web server.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fcilbench.boards.model import Board
from fcilbench.boards.render import facts_of, notes_of
from fcilbench.pages.cells import cells_of
from fcilbench.pages.cite import bibtex
from fcilbench.pages.further import Spread, dialog_charts, further
from fcilbench.pages.pack import bundled, library, packed, packed_data, page_code, policy, render
from fcilbench.pages.papers import paper_of
from fcilbench.pages.places import view_address, view_name
from fcilbench.pages.views import Descriptions, views
from fcilbench.results.private import hide_homes
from fcilbench.results.store import Store
from fcilbench.spec.row import Row


@dataclass(frozen=True)
class Beside:
    """A page of a site of leaderboards.

    Attributes:
        about: What the board is, in a sentence or two.
        links: Names and addresses of the files beside the page.
        source: The folder as `fcilbench reproduce --from` is given it.
    """

    about: str
    links: tuple[tuple[str, str], ...]
    source: str


def render_report(
    boards: Sequence[Board],
    rows: Iterable[Row],
    store: Store,
    title: str = "fcilbench report",
    beside: Beside | None = None,
    *,
    spread: Spread | None = None,
) -> str:
    """Returns the page of boards; those without a block are left out.

    Args:
        boards: The boards; that of accuracies is the page's own, the others are tables below it.
        rows: The rows behind them.
        store: Their results folder, for curves and environments.
        title: Its heading.
        beside: What a page of a site has beside it; without, the page is one file.
        spread: Reads how the samples of a row's data are spread over clients; without, the page does not show it.
    """
    whole = {row.cell_id: row for row in rows}
    shown = [board for board in boards if board.blocks]
    charts = Descriptions()
    found = views(shown, whole, store, charts)
    more = {"more": further(shown, whole, charts, spread), "dialog": dialog_charts(whole.values(), charts)}
    source = beside.source if beside else hide_homes(str(store.root))
    data = {
        "title": title,
        "source": shlex.quote(source),
        "papers": _papers(shown),
        **found,
        **more,
        "charts": charts.parsed,
        **cells_of(whole.values(), store),
    }
    code = "" if beside else site_code()
    loader = "" if beside else bundled(("unpack", "loader"))
    suites = ", ".join(sorted({row.suite for row in whole.values()}))
    about = beside.about if beside else f"{len(whole)} cells of {suites}"
    return render(
        "page.html.jinja",
        title=title,
        about=about,
        links=beside.links if beside else (),
        beside=beside is not None,
        presets=_presets(found),
        finding=_first_finding(found),
        notes=_notes(shown),
        bibtex=bibtex(title, about, [*whole.values()]) if whole else "",
        policy=policy([] if beside else [loader, code], beside=beside is not None),
        data=packed_data(data),
        code="" if beside else _packed_code(),
        script=loader,
    )


@cache
def site_code() -> str:
    """Returns `charts.js`: the library and the pages' own code."""
    return library() + page_code()


@cache
def _packed_code() -> str:
    return packed(site_code())


def _papers(boards: Sequence[Board]) -> list[tuple[str, str, str]]:
    """Returns the sources of methods by label, of labels that mean the same plugin everywhere."""
    plugins: dict[str, set[str]] = {}
    for entry in (entry for board in boards for block in board.blocks for entry in block.entries):
        plugins.setdefault(entry.aggregator, set()).add(entry.plugin)
    known = {label: paper_of(*own) for label, own in plugins.items() if len(own) == 1}
    return [(label, paper.source, paper.address) for label, paper in known.items() if paper]


def _first_finding(found: Mapping[str, Any]) -> tuple[str, str]:
    """Returns what the page says before anything is chosen."""
    single = len(found["places"]) == 1 or len(found["places"]) > MANY
    told: tuple[str, str] = found["findings"].get(f"{0 if single else 'all'}.0.0.0", ("", ""))
    return told


MANY = 6
"""With more places than this the page shows the first one at first; `state.js` has the same number."""


def _presets(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the named views of a page, with what stands in the address: only those that show something."""
    measured = {tuple(key.split(".")) for key, (_, rest) in found["findings"].items() if rest}
    presets = []
    for number, (task, _) in enumerate(found["tasks"]):
        if ("all", str(number), "0", "0") in measured:
            presets.append((view_name(task), view_address(**({"task": task} if number else {}))))
    tasks = [task for task, _ in found["tasks"]]
    for number, (metric, title, *_) in enumerate(found["metrics"]):
        if metric == "forgetting" and ("all", "0", "0", str(number)) in measured:
            presets.append((title, view_address(metric=metric)))
    for number, stress in enumerate(found["stresses"][1:], start=1):
        if any(("all", str(task), str(number), "0") in measured for task in range(len(tasks))):
            presets.append((f"Under {stress}", view_address(stress=stress)))
    return presets


def _notes(boards: Sequence[Board]) -> list[tuple[str, list[str], list[tuple[str, list[str]]]]]:
    """Returns the notes of each board and of each of its blocks, with what the block's scenario fixes.

    What was said once is not said again: reasons and warnings of a row stand in every board that shows it.
    """
    notes = []
    told: set[tuple[str, str]] = set()
    for board in boards:
        parts = {"": list(board.notes), **{block.heading: [] for block in board.blocks}}
        for block in board.blocks:
            parts[block.heading] += [facts_of(block), *notes_of(block)]
        fresh = {name: [line for line in own if (name, line) not in told] for name, own in parts.items()}
        told |= {(name, line) for name, own in fresh.items() for line in own}
        shared = fresh.pop("")
        notes.append((board.title, shared, [(name, own) for name, own in fresh.items() if own]))
    return notes
