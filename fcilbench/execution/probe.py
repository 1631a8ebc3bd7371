"""Questions about this machine that need the plugins themselves, answered by a child process.

`python -m fcilbench.execution.probe` reads a JSON object on standard input and writes one on standard output; what
plugins print goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fcilbench.errors import FcilbenchError
from fcilbench.spec.cell import Cell

Progress = Callable[[str, int, int], None]
"""Called with the name of a data set, the number of samples done and of all samples."""
Tell = Callable[[dict[str, Any]], None]

_SECONDS = 600.0
"""Silence after which the child process is given up."""
_EVERY = 0.2
"""Seconds between two reports of progress."""


def probe_cells(cells: Sequence[Cell], data_root: Path | None, device: str = "cpu") -> list[str | None]:
    """Runs one tiny forward and aggregate on synthetic data for each cell.

    Args:
        cells: Cells with distinct combinations of plugins.
        data_root: Data root (weights lie there).
        device: `cpu` or `cuda`.

    Returns:
        For each cell what went wrong, in one line, or `None`.
    """
    items = [{"cell": cell.model_dump(mode="json"), "device": device} for cell in cells]
    return [answer["problem"] for answer in _ask("cells", items, data_root)]


def probe_datasets(uses: Sequence[tuple[str, dict[str, Any]]], data_root: Path | None) -> list[str | None]:
    """Loads data sets and verifies their content, from their caches where these hold.

    Args:
        uses: Name and parameters of each.
        data_root: Data root.

    Returns:
        For each data set why it cannot be used, in one line, or `None`.
    """
    items = [{"name": name, "params": params, "fresh": False} for name, params in uses]
    return [answer["problem"] for answer in _ask("datasets", items, data_root)]


def verify_dataset(
    name: str, data_root: Path | None, progress: Progress | None = None
) -> tuple[str | None, str | None]:
    """Reads a data set whole, even if a cache of it holds, and verifies its content.

    Args:
        name: Its name.
        data_root: Data root.
        progress: Called now and then while it is decoded into its cache.

    Returns:
        Why it cannot be used, in one line, or `None`; and its content digest, or `None`.
    """
    (answer,) = _ask("datasets", [{"name": name, "params": {}, "fresh": True}], data_root, progress)
    return answer["problem"], answer.get("digest")


def _ask(
    question: str, items: list[dict[str, Any]], data_root: Path | None, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Asks a child process about each item; one that dies answers for the item that it died of."""
    answers: list[dict[str, Any]] = []
    while len(answers) < len(items):
        request = {"question": question, "items": items[len(answers) :], "root": str(data_root) if data_root else None}
        for line in _converse(request):
            if "progress" not in line:
                answers.append(line)
            elif progress is not None:
                progress(*line["progress"])
    return answers[: len(items)]


def _converse(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Starts a child process and yields what it says; the last line is its end, in words."""
    command = [sys.executable, "-m", "fcilbench.execution.probe"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request))
            process.stdin.close()
        silent = threading.Event()
        watchdog = _watch(process, silent)
        for line in process.stdout:
            watchdog.cancel()
            yield json.loads(line)
            watchdog = _watch(process, silent)
        code = process.wait()
        watchdog.cancel()
    yield {"problem": f"no answer within {_SECONDS:g} s" if silent.is_set() else f"the process died with code {code}"}


def _watch(process: subprocess.Popen[str], silent: threading.Event) -> threading.Timer:
    """Kills a child process that says nothing any more."""

    def end() -> None:
        silent.set()
        process.kill()

    timer = threading.Timer(_SECONDS, end)
    timer.daemon = True
    timer.start()
    return timer


def main() -> None:
    """Answers the request on standard input, one line an item, each as soon as it is known."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what plugins print must not be mistaken for an answer
    request = json.load(sys.stdin)
    root = Path(request["root"]) if request["root"] else None

    def tell(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    for item in request["items"]:
        tell(_answer(request["question"], item, root, tell))


def _answer(question: str, item: dict[str, Any], root: Path | None, tell: Tell) -> dict[str, Any]:
    try:
        if question == "cells":
            _probe_cell(Cell.model_validate(item["cell"]), item["device"], root)
            return {"problem": None}
        return {"problem": None, "digest": _probe_dataset(item, root, tell)}
    except FcilbenchError as error:
        return {"problem": str(error) + (f" ({error.hint})" if error.hint else "")}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def _probe_cell(cell: Cell, device: str, root: Path | None) -> None:
    from fcilbench.execution.jobs import build_experiment
    from fcilbench.federation.probe import probe

    probe(build_experiment(cell, root, device))


def _probe_dataset(item: dict[str, Any], root: Path | None, tell: Tell) -> str:
    from typing import cast

    from fcilbench.api.dataset import Dataset
    from fcilbench.data.open import open_dataset
    from fcilbench.data.root import data_root
    from fcilbench.registry import entrypoints

    plugin = cast(type[Dataset], entrypoints.load(entrypoints.lookup("datasets", item["name"])))
    told = 0.0

    def report(done: int, total: int) -> None:
        nonlocal told
        if done == total or time.monotonic() - told > _EVERY:
            told = time.monotonic()
            tell({"progress": [item["name"], done, total]})

    dataset = plugin(plugin.Params.model_validate(item["params"]))
    return open_dataset(dataset, data_root(root), report, fresh=item["fresh"])[1]


if __name__ == "__main__":
    main()
