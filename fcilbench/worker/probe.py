"""What a worker answers about cells and data sets of this machine; `fcilbench.execution.probe` asks."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, cast

from fcilbench.errors import FcilbenchError
from fcilbench.registry import entrypoints
from fcilbench.spec.cell import Cell
from fcilbench.worker.events import Emit

if TYPE_CHECKING:
    from fcilbench.api.dataset import Corpus


def answer(ask: str, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Answers a `probe`, `verify` or `inspect` request in the worker: the `problem`, or what was found."""
    try:
        if ask == "inspect":
            from fcilbench.worker.survey import inspect_dataset

            return {"problem": None, **inspect_dataset(request, emit)}
        if ask == "verify":
            return {"problem": None, **_open_dataset(request, emit)}
        from fcilbench.federation.probe import probe
        from fcilbench.worker.jobs import build_experiment

        probe(build_experiment(Cell.model_validate(request["cell"]), "cpu"))
        return {"problem": None}
    except FcilbenchError as error:
        return {"problem": str(error) + (f" ({error.hint})" if error.hint else "")}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"problem": entrypoints.reason_of(error)}


def _open_dataset(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
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
