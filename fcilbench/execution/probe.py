"""Asks a worker about cells and data sets on this machine; `fcilbench.worker.probe` answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcilbench.registry import catalog
from fcilbench.spec.cell import Cell
from fcilbench.worker.events import Event

Progress = Callable[[str, int, int], None]
"""Called with the name of a data set, the number of decoded samples and that of all samples."""


def probe_cells(cells: Sequence[Cell]) -> list[str | None]:
    """Runs a tiny round of each cell on synthetic data and the CPU; returns what went wrong in one line, or `None`."""
    with catalog.session() as (asker, _):
        return [asker.ask({"ask": "probe", "cell": cell.model_dump(mode="json")})["problem"] for cell in cells]


def verify_datasets(
    uses: Sequence[tuple[str, dict[str, Any]]], fresh: bool = False, progress: Progress | None = None
) -> list[tuple[str | None, str | None]]:
    """Loads data sets, given by names and parameters, and verifies their content; `fresh` ignores caches.

    Returns:
        For each data set the reason why it cannot be used, or `None`; and its content digest, or `None`.
    """
    found = []
    with catalog.session() as (asker, _):
        for name, params in uses:

            def show(event: Event, name: str = name) -> None:
                if progress is not None and event["event"] == "decoding":
                    progress(name, event["done"], event["total"])

            question = {"ask": "verify", "name": name, "params": params, "fresh": fresh}
            answer = asker.ask(question, show)
            found.append((answer["problem"], answer.get("digest")))
    return found


def inspect_dataset(
    name: str,
    params: Mapping[str, Any],
    backbones: Sequence[Mapping[str, Any]] = (),
    draws: Sequence[Mapping[str, Any]] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Reads a whole data set, given by name and parameters, and describes it.

    Returns:
        A JSON object (`fcilbench.worker.survey`); its `problem` is the reason why it cannot be read, or `None`.
    """

    def show(event: Event) -> None:
        if progress is not None and event["event"] == "decoding":
            progress(name, event["done"], event["total"])

    with catalog.session() as (asker, _):
        question = {"ask": "inspect", "name": name, "params": params, "backbones": [*backbones], "draws": [*draws]}
        return asker.ask(question, show)


@dataclass(frozen=True)
class Draw:
    """What decides which classes a task has and how many samples test it: the fields of a cell, and its seeds."""

    tasks: tuple[int, ...]
    order: int
    partition: int
    validation: float


@dataclass(frozen=True)
class DrawnTasks:
    """The class names and the number of test samples of each task."""

    classes: list[list[str]]
    test_sizes: list[int]


def draw_tasks(
    name: str, params: Mapping[str, Any], draws: Sequence[Draw]
) -> tuple[str | None, str | None, list[DrawnTasks | None]]:
    """Loads a data set, given by name and parameters, and draws tasks of it.

    Returns:
        The reason why it cannot be used, or `None`; its content digest, or `None`; the tasks of each draw, `None` where
        the classes do not split so.
    """
    with catalog.session() as (asker, _):
        question = {"ask": "verify", "name": name, "params": params, "fresh": False, "draws": [*map(vars, draws)]}
        reply = asker.ask(question)
    drawn = [None if each is None else DrawnTasks(**each) for each in reply.get("draws", ())]
    return reply["problem"], reply.get("digest"), drawn
