"""Probes of cells and data sets on this machine: the questions, and a worker's answers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, cast

from fcilbench.errors import FcilbenchError
from fcilbench.registry import catalog, entrypoints
from fcilbench.registry.process import Event
from fcilbench.spec.cell import Cell

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


def answer(ask: str, request: dict[str, Any], emit: Callable[[Event], None]) -> dict[str, Any]:
    """Answers a `probe` or `verify` request in the worker: the `problem`, and the `digest` of a good data set."""
    try:
        if ask == "verify":
            return {"problem": None, "digest": _open_dataset(request, emit)}
        from fcilbench.execution.jobs import build_experiment
        from fcilbench.federation.probe import probe

        probe(build_experiment(Cell.model_validate(request["cell"]), "cpu"))
        return {"problem": None}
    except FcilbenchError as error:
        return {"problem": str(error) + (f" ({error.hint})" if error.hint else "")}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"problem": entrypoints.reason_of(error)}


def _open_dataset(request: dict[str, Any], emit: Callable[[Event], None]) -> str:
    from fcilbench.api.dataset import Dataset
    from fcilbench.data.open import open_dataset
    from fcilbench.data.root import data_root
    from fcilbench.federation.run import decoding_events

    plugin = cast(type[Dataset], entrypoints.load(entrypoints.lookup("datasets", request["name"])))
    dataset = plugin(plugin.Params.model_validate(request["params"]))
    return open_dataset(dataset, data_root(), decoding_events(emit), fresh=request["fresh"])[1]
