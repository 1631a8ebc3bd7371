"""Charts of a page that not every board has, and those of the cells behind a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from fcilbench.boards.model import Board
from fcilbench.charts import critical_difference, diagnostics, forgetting, loss, matrix, partition, severity, sweep
from fcilbench.charts.parts import Data
from fcilbench.errors import FcilbenchError, NothingSelectedError
from fcilbench.pages.places import Place, places_of, scenario_key, tasks_of
from fcilbench.pages.views import Descriptions
from fcilbench.spec.row import Row

Spread = Callable[[Row], Mapping[str, Any]]
"""Returns how the samples of a row's data are spread over clients (`fcilbench.workflow.survey.spread_of`)."""


def further(
    boards: Sequence[Board], rows: Mapping[str, Row], charts: Descriptions, spread: Spread | None = None
) -> list[dict[str, Any]]:
    """Returns the further charts of a page, each with the choices that it belongs to; `None` fits every choice.

    Those are mean ranks over scenarios, accuracy by the severity of a stressor and by the value of a hyperparameter,
    and, if `spread` reads the data, the partition of the first seed.
    """
    accuracy = next((board for board in boards if board.board == "accuracy"), None)
    if accuracy is None:
        return []
    places = places_of(accuracy)
    tasks = tasks_of(places)
    return [
        *_ranks(accuracy, tasks, charts),
        *_severities(boards, places, tasks, rows, charts),
        *_sweeps(places, tasks, rows, charts),
        *(_partitions(places, rows, charts, spread) if spread else ()),
    ]


def dialog_charts(rows: Iterable[Row], charts: Descriptions) -> dict[str, int]:
    """Returns the numbers of the descriptions of a cell's charts.

    `m5` is that of the accuracy matrix of five tasks and `f5` that of what is forgotten of them, `loss` that of the
    training loss, and `logs` that of one thing that the method logged.
    """
    tasks = sorted({len(own) for row in rows for own in row.accuracy.values()})
    found = {f"m{count}": _number(charts, matrix, {"tasks": count}) for count in tasks}
    found |= {f"f{count}": _number(charts, forgetting, {"tasks": count}) for count in tasks if count > 1}
    one = {"room": 1}
    return found | {"loss": _number(charts, loss, one), "logs": _number(charts, diagnostics, one)}


def _number(charts: Descriptions, chart: ModuleType, layout: dict[str, Any]) -> int:
    number: int = charts.place(chart, {"layout": [layout]})["chart"]
    return number


def _ranks(board: Board, tasks: Sequence[str], charts: Descriptions) -> Iterator[dict[str, Any]]:
    for number, task in enumerate(tasks):
        found = _tried(critical_difference.data, board, task)
        if found:
            about = "A bar joins methods that Nemenyi's test does not tell apart (5 %)."
            yield _chart("Mean ranks", about, charts.place(critical_difference, found), task=number)


def _severities(
    boards: Sequence[Board],
    places: Sequence[Place],
    tasks: Sequence[str],
    rows: Mapping[str, Row],
    charts: Descriptions,
) -> Iterator[dict[str, Any]]:
    keys = {scenario_key(block): number for number, place in enumerate(places) for block in place.blocks.values()}
    for block in (block for board in boards if board.board == "robustness" for block in board.blocks):
        place = keys.get(scenario_key(block))
        for name in severity.stressors(block, rows):
            for number, task in enumerate(tasks):
                found = _tried(severity.data, block, task, rows, name)
                if found and place is not None:
                    about = f"on {places[place].name}: FAA by severity, clean cells where it does nothing."
                    drawn = charts.place(severity, found)
                    yield _chart(f"Under {name}", about, drawn, task=number, place=place) | {"pins": True}


def _sweeps(
    places: Sequence[Place], tasks: Sequence[str], rows: Mapping[str, Row], charts: Descriptions
) -> Iterator[dict[str, Any]]:
    for place, each in enumerate(places):
        for stress, block in each.blocks.items():
            for name in sweep.hyperparameters(block, rows):
                for number, task in enumerate(tasks):
                    found = _tried(sweep.data, block, task, rows, name)
                    if found:
                        about = f"on {each.name}: nothing else differs between the points of a line."
                        drawn = charts.place(sweep, found)
                        yield _chart(name, about, drawn, task=number, place=place) | {"stress": stress}


def _partitions(
    places: Sequence[Place], rows: Mapping[str, Row], charts: Descriptions, spread: Spread
) -> Iterator[dict[str, Any]]:
    for number, place in enumerate(places):
        ids = [cell for block in place.blocks.values() for entry in block.entries for cell in entry.cells]
        own = [rows[each] for each in ids if each in rows and rows[each].status == "ok"]
        if not own:
            continue
        row = min(own, key=lambda each: (each.seed, each.cell_id))
        try:
            found = partition.data(spread(row))
        except FcilbenchError:  # the data are not here, or the row does not say what they are
            continue
        about = f"on {place.name}, seed {row.seed}: samples of each class at each client."
        yield _chart("Partition", about, charts.place(partition, found), place=number)


def _chart(
    title: str, about: str, drawn: dict[str, Any], *, task: int | None = None, place: int | None = None
) -> dict[str, Any]:
    return {"title": title, "about": about, "task": task, "place": place, "stress": None, "pins": False, **drawn}


def _tried(data: Callable[..., Data], *arguments: Any) -> Data | None:
    try:
        return data(*arguments)
    except NothingSelectedError:
        return None
