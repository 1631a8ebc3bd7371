"""The index of a folder of leaderboards: each with its finding, to be filtered by method, data set and question."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fcilbench.boards.model import Board
from fcilbench.escape import page_link
from fcilbench.pages.finding import Found, found_in, sentence
from fcilbench.pages.pack import bundled, policy, render
from fcilbench.pages.places import metrics_of, places_of, stresses_of, tasks_of, view_address, view_name
from fcilbench.spec.row import Row


class Finding(NamedTuple):
    """What a board says to one question: its key and name, the sentence, and the address of the view that shows it."""

    key: str
    question: str
    lead: str
    rest: str
    address: str


@dataclass(frozen=True)
class Line:
    """A leaderboard in the index.

    Attributes:
        name: Its folder.
        about: What it is.
        facts: Its other facts by name, as they are shown.
        methods: Labels of its methods.
        datasets: Labels of its data sets.
    """

    name: str
    about: str
    facts: tuple[tuple[str, str], ...]
    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    findings: tuple[Finding, ...]


def findings_of(board: Board) -> tuple[Finding, ...]:
    """Returns what a board of accuracies says to each question: without stress by task identity, then by stress."""
    places = places_of(board)
    metrics = list(metrics_of(places).values())
    if not metrics:
        return ()
    tasks, stresses = tasks_of(places), stresses_of(places)
    found = []
    for stress in stresses:
        for task in tasks if stress == stresses[0] else tasks[:1]:
            own: list[Found] = []
            for place in places:
                block = place.blocks.get(stress)
                each = found_in(block, place.name, task, metrics[0]) if block else None
                own += [each] if each else []
            if own:
                clean = stress == stresses[0]
                choice = {"task": task} if clean and task != tasks[0] else {} if clean else {"stress": stress}
                name = view_name(task) if clean else f"Under {stress}"
                key = task if clean else f"stress {stress}"
                found.append(Finding(key, name, *sentence(own, task, stress, metrics[0]), view_address(**choice)))
    return tuple(found)


def line_of(name: str, about: str, facts: Sequence[tuple[str, str]], board: Board | None, rows: Iterable[Row]) -> Line:
    """Returns the line of a leaderboard, from its board of accuracies and its rows."""
    whole = list(rows)
    return Line(
        name=name,
        about=about,
        facts=tuple(facts),
        methods=tuple(sorted({str(row.coords.get("aggregator", "")) for row in whole})),
        datasets=tuple(sorted({str(row.coords.get("dataset", "")) for row in whole})),
        findings=findings_of(board) if board else (),
    )


def render_index(title: str, lines: Sequence[Line]) -> str:
    """Returns the page of an index; without JavaScript it shows every board with its first finding."""
    script = bundled(("index",))
    questions = {each.key: each.question for line in lines for each in line.findings}
    return render(
        "index.html.jinja",
        title=title,
        boards=[_shown(line) for line in lines],
        methods=sorted({method for line in lines for method in line.methods}),
        datasets=sorted({each for line in lines for each in line.datasets}),
        questions=list(questions.items()),
        script=script,
        policy=policy([script]),
    )


def _shown(line: Line) -> dict[str, Any]:
    return {**vars(line), "address": page_link(line.name, "index.html")} | {
        "tags": json.dumps({"methods": line.methods, "datasets": line.datasets})
    }
