"""Probes of cells and data sets on this machine: the questions, and a worker's answers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fcilbench.errors import FcilbenchError
from fcilbench.registry import catalog, entrypoints
from fcilbench.registry.process import Event
from fcilbench.spec.cell import Cell

if TYPE_CHECKING:
    from fcilbench.api.dataset import Corpus

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
                if progress is not None:
                    progress(name, event["done"], event["total"])

            question = {"ask": "verify", "name": name, "params": params, "fresh": fresh}
            answer = asker.ask(question, show)
            found.append((answer["problem"], answer.get("digest")))
    return found


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


def answer(ask: str, request: dict[str, Any], emit: Callable[[Event], None]) -> dict[str, Any]:
    """Answers a `probe` or `verify` request in the worker: the `problem`, or the data set's `digest` and `draws`."""
    try:
        if ask == "verify":
            return {"problem": None, **_open_dataset(request, emit)}
        from fcilbench.execution.jobs import build_experiment
        from fcilbench.federation.probe import probe

        probe(build_experiment(Cell.model_validate(request["cell"]), "cpu"))
        return {"problem": None}
    except FcilbenchError as error:
        return {"problem": str(error) + (f" ({error.hint})" if error.hint else "")}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"problem": entrypoints.reason_of(error)}


def _open_dataset(request: dict[str, Any], emit: Callable[[Event], None]) -> dict[str, Any]:
    from fcilbench.api.dataset import Dataset
    from fcilbench.data.open import open_dataset
    from fcilbench.data.root import data_root
    from fcilbench.federation.run import decoding_events

    plugin = cast(type[Dataset], entrypoints.load(entrypoints.lookup("datasets", request["name"])))
    dataset = plugin(plugin.Params.model_validate(request["params"]))
    corpus, digest = open_dataset(dataset, data_root(), decoding_events(emit), fresh=request["fresh"])
    return {"digest": digest, "draws": [_drawn(corpus, **each) for each in request.get("draws", ())]}


def _drawn(corpus: Corpus, tasks: list[int], order: int, partition: int, validation: float) -> dict[str, Any] | None:
    """Returns the class names and test sizes of tasks, as an experiment draws them."""
    import numpy as np

    from fcilbench.federation.tasks import TaskStream, stream, validation_split

    labels, names = corpus.test.labels, corpus.class_names
    if sum(tasks) != len(names) or min(tasks, default=0) < 1:
        return None
    if validation:
        _, held = validation_split(corpus.train.labels, validation, stream(partition, "validation"))
        labels = corpus.train.labels[held]
    split = TaskStream.draw(len(names), tasks, order)
    counts = np.bincount(split.internal(labels), minlength=len(names))
    return {
        "classes": split.names(names),
        "test_sizes": [int(counts[task.classes].sum()) for task in split.tasks],
    }
