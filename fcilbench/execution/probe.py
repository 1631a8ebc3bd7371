"""Questions about this machine that need the plugins themselves: does a cell run, is a data set what it declares?"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from fcilbench.errors import FcilbenchError, PrerequisiteError
from fcilbench.registry import entrypoints
from fcilbench.registry.process import Asker, Event
from fcilbench.spec.cell import Cell

Progress = Callable[[str, int, int], None]
"""Called with the name of a data set, the number of samples done and of all samples."""

_SECONDS = 600.0  # of silence, after which the worker is given up


def probe_cells(cells: Sequence[Cell], data_root: Path | None, device: str = "cpu") -> list[str | None]:
    """Runs one tiny forward and aggregate on synthetic data for each cell; says what went wrong, in one line each.

    What a backbone lacks on this machine is asked for once: its other cells get the same answer.
    """
    problems, lacking = [], dict[str, dict[str, Any]]()
    with Asker() as asker:
        for cell in cells:
            question = {"ask": "probe", "cell": cell.model_dump(mode="json"), "device": device}
            backbone = cell.backbone.model_dump_json()
            answer = lacking.get(backbone) or _ask(asker, question, data_root)
            if answer.get("missing"):
                lacking[backbone] = answer
            problems.append(answer["problem"])
    return problems


def verify_datasets(
    uses: Sequence[tuple[str, dict[str, Any]]],
    data_root: Path | None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> list[tuple[str | None, str | None]]:
    """Loads data sets and verifies their content.

    Args:
        uses: Name and parameters of each.
        data_root: Data root; `None` for the default.
        fresh: Read the files even where a cache of them holds.
        progress: Called now and then while a data set is decoded.

    Returns:
        For each data set why it cannot be used, in one line, or `None`; and its content digest, or `None`.
    """
    questions = [{"ask": "verify", "name": name, "params": params, "fresh": fresh} for name, params in uses]
    with Asker() as asker:
        answers = [_ask(asker, question, data_root, progress) for question in questions]
    return [(answer["problem"], answer.get("digest")) for answer in answers]


def _ask(
    asker: Asker, question: dict[str, Any], data_root: Path | None, progress: Progress | None = None
) -> dict[str, Any]:
    def show(event: Event) -> None:
        if progress is not None:
            progress(question["name"], event["done"], event["total"])

    return asker.ask({**question, "root": str(data_root) if data_root else None}, show, _SECONDS)


def answer(ask: str, request: dict[str, Any], emit: Callable[[Event], None]) -> dict[str, Any]:
    """Answers a `probe` or `verify` request in the worker: `problem`, and for a good data set its `digest`."""
    root = Path(request["root"]) if request["root"] else None
    try:
        if ask == "probe":
            _probe_cell(Cell.model_validate(request["cell"]), request["device"], root)
            return {"problem": None}
        return {"problem": None, "digest": _open_dataset(request, root, emit)}
    except FcilbenchError as error:
        problem = str(error) + (f" ({error.hint})" if error.hint else "")
        return {"problem": problem, "missing": isinstance(error, PrerequisiteError)}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def _probe_cell(cell: Cell, device: str, root: Path | None) -> None:
    from fcilbench.execution.jobs import build_experiment
    from fcilbench.federation.probe import probe

    probe(build_experiment(cell, root, device))


def _open_dataset(request: dict[str, Any], root: Path | None, emit: Callable[[Event], None]) -> str:
    from fcilbench.api.dataset import Dataset
    from fcilbench.data.open import open_dataset
    from fcilbench.data.root import data_root
    from fcilbench.federation.run import decoding_events

    plugin = cast(type[Dataset], entrypoints.load(entrypoints.lookup("datasets", request["name"])))
    dataset = plugin(plugin.Params.model_validate(request["params"]))
    return open_dataset(dataset, data_root(root), decoding_events(emit), fresh=request["fresh"])[1]
