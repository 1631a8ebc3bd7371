"""The choices of a page: places, which are scenarios apart from their stress, task identities, stress and metrics."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from fcilbench.boards.model import Block, Board, Column
from fcilbench.boards.render import facts_of
from fcilbench.spec.protocol import scored_order
from fcilbench.tables import cut

QUESTIONS: Mapping[str, str] = {
    "none": "without task identity",
    "inferred": "with the task picked by the method",
    "oracle": "told the task",
}
"""How a sentence names what is asked of the methods, by task identity."""
_AXES = ("dataset", "backbone", "partition")
_SHOWN = 3
"""Facts that a name lists where labels do not tell two places apart."""


@dataclass
class Place:
    """A scenario apart from its stress.

    Attributes:
        name: What tells it from the other places, e.g. its data set.
        about: Its other labels.
        facts: What it fixes, in one line.
        blocks: Its blocks of the accuracy board, by the label of their stress.
    """

    name: str
    about: str
    facts: str
    blocks: dict[str, Block] = field(default_factory=dict)


def places_of(board: Board) -> list[Place]:
    """Returns the places of a board of accuracies, in the order of their blocks."""
    found: dict[tuple[str, int], list[Block]] = defaultdict(list)
    met: dict[tuple[str, str], int] = defaultdict(int)
    for block in board.blocks:
        key, stress = scenario_key(block), block.scenario.get("stress", "")
        found[key, met[key, stress]].append(block)  # the n-th block of a scenario goes with the n-th of its stress
        met[key, stress] += 1
    groups = list(found.values())
    names = _names([blocks[0] for blocks in groups])
    places = []
    for name, blocks in zip(names, groups, strict=True):
        labels = [blocks[0].scenario.get(axis, "") for axis in _AXES]
        told = re.split(r" \(| #", name)[0].split(" / ")
        about = ", ".join(label for label in labels if label and label not in told)
        own = {block.scenario.get("stress", ""): block for block in blocks}
        places.append(Place(name, about, facts_of(blocks[0]), own))
    return places


def scenario_key(block: Block) -> str:
    """Returns what a block shares with those that differ in stress, hardware or the methods' recipes alone."""
    return json.dumps([[block.scenario.get(axis, "") for axis in _AXES], block.place])


def _names(blocks: Sequence[Block]) -> list[str]:
    """Returns the shortest names that differ: of labels, then with the facts that differ, then with a number."""
    labels = [tuple(block.scenario.get(axis, "") for axis in _AXES) for block in blocks]
    for axes in ((0,), (0, 1), (0, 2), (0, 1, 2)):
        names = [" / ".join(filter(None, (own[axis] for axis in axes))) or "all" for own in labels]
        if len({*names}) == len({*labels}):
            break
    if len({*names}) < len(blocks):
        for name in [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            alike = [index for index, other in enumerate(names) if other == name]
            apart = _differences([blocks[index].facts for index in alike])
            for index, text in zip(alike, apart, strict=True):
                names[index] = f"{name} ({text})" if text else name
    counted: dict[str, int] = defaultdict(int)
    for index, name in enumerate(names):
        counted[name] += 1
        names[index] = f"{name} #{counted[name]}" if counted[name] > 1 else name
    return names


def _differences(facts: Sequence[Mapping[str, str]]) -> list[str]:
    keys = sorted({key for own in facts for key in own})
    apart = [key for key in keys if len({own.get(key) for own in facts}) > 1][:_SHOWN]
    return [", ".join(f"{key.rpartition('.')[2]} {cut(own.get(key, 'none'), 12)}" for key in apart) for own in facts]


def tasks_of(places: Iterable[Place]) -> list[str]:
    """Returns the task identities and selectors of all places, in the order of the boards."""
    return scored_order({group.key for place in places for block in place.blocks.values() for group in block.groups})


def stresses_of(places: Iterable[Place]) -> list[str]:
    """Returns the labels of all stress, those without any first."""
    found = {stress for place in places for stress in place.blocks}
    return sorted(found, key=lambda label: (label != "none", label))


def metrics_of(places: Iterable[Place]) -> dict[str, Column]:
    """Returns the columns of all groups by metric; the first one ranks."""
    return {
        column.metric: column
        for place in places
        for block in place.blocks.values()
        for group in block.groups
        for column in group.columns
    }


_VIEWS = {"none": "No task identity", "inferred": "Task picked by the method", "oracle": "Task told (oracle)"}


def view_name(task: str) -> str:
    """Returns the name of the view of a task identity or selector."""
    selector = task.partition(":")[2]
    return f"Task picked by {selector}" if selector else _VIEWS.get(task, task)


def view_address(**choices: str) -> str:
    """Returns what stands in a page's address for some choices; `#` for those that it has at first."""
    return f"#{urlencode(choices, quote_via=quote)}"


def question(task: str) -> str:
    """Returns a task identity or selector as part of a sentence."""
    identity, _, selector = task.partition(":")
    return f"with the task picked by the selector {selector}" if selector else QUESTIONS.get(identity, f"under {task}")
