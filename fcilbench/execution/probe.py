"""Questions about this machine that need the plugins themselves: does a cell run, is a data set what it declares?

Both sides are here: what asks, and what a worker answers.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, cast

from fcilbench.errors import FcilbenchError, PrerequisiteError
from fcilbench.registry import entrypoints
from fcilbench.registry.process import Asker, Event
from fcilbench.spec.cell import Cell

Progress = Callable[[str, int, int], None]
"""Called with the name of a data set, the number of samples done and of all samples."""

_SECONDS = 600.0  # of silence, after which the worker is given up


def probe_cells(cells: Sequence[Cell], device: str = "cpu") -> list[str | None]:
    """Runs one tiny forward and aggregate on synthetic data for each cell; says what went wrong, in one line each.

    What a backbone lacks on this machine is asked for once: its other cells get the same answer.
    """
    problems: list[str | None] = []
    lacking: dict[str, str] = {}
    with Asker() as asker:
        for cell in cells:
            backbone = cell.backbone.model_dump_json()
            if backbone not in lacking:
                question = {"ask": "probe", "cell": cell.model_dump(mode="json"), "device": device}
                answer = asker.ask(question, seconds=_SECONDS)
                if not answer.get("missing"):
                    problems.append(answer["problem"])
                    continue
                lacking[backbone] = answer["problem"]
            problems.append(lacking[backbone])
    return problems


def verify_datasets(
    uses: Sequence[tuple[str, dict[str, Any]]], fresh: bool = False, progress: Progress | None = None
) -> list[tuple[str | None, str | None]]:
    """Loads data sets and verifies their content.

    Args:
        uses: Name and parameters of each.
        fresh: Read the files even where a cache of them holds.
        progress: Called now and then while a data set is decoded.

    Returns:
        For each data set why it cannot be used, in one line, or `None`; and its content digest, or `None`.
    """
    found = []
    with Asker() as asker:
        for name, params in uses:

            def show(event: Event, name: str = name) -> None:
                if progress is not None:
                    progress(name, event["done"], event["total"])

            question = {"ask": "verify", "name": name, "params": params, "fresh": fresh}
            answer = asker.ask(question, show, _SECONDS)
            found.append((answer["problem"], answer.get("digest")))
    return found


def answer(ask: str, request: dict[str, Any], emit: Callable[[Event], None]) -> dict[str, Any]:
    """Answers a `probe` or `verify` request in the worker: `problem`, and for a good data set its `digest`."""
    try:
        if ask == "verify":
            return {"problem": None, "digest": _open_dataset(request, emit)}
        from fcilbench.execution.jobs import build_experiment
        from fcilbench.federation.probe import probe

        probe(build_experiment(Cell.model_validate(request["cell"]), request["device"]))
        return {"problem": None}
    except FcilbenchError as error:
        problem = str(error) + (f" ({error.hint})" if error.hint else "")
        return {"problem": problem, "missing": isinstance(error, PrerequisiteError)}
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
