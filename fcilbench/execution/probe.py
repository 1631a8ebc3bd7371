"""Questions about this machine that need the plugins themselves, answered by a child process.

`python -m fcilbench.execution.probe` reads a JSON object on standard input and writes one on standard output; what
plugins print goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcilbench.errors import FcilbenchError
from fcilbench.suite.cell import Cell

_SECONDS = 600.0


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
    return _ask("cells", items, data_root)


def probe_datasets(uses: Sequence[tuple[str, dict[str, Any]]], data_root: Path | None) -> list[str | None]:
    """Loads data sets and verifies their content.

    Args:
        uses: Name and parameters of each.
        data_root: Data root.

    Returns:
        For each data set why it cannot be used, in one line, or `None`.
    """
    return _ask("datasets", [{"name": name, "params": params} for name, params in uses], data_root)


def _ask(question: str, items: list[dict[str, Any]], data_root: Path | None) -> list[str | None]:
    """Asks a child process about each item; one that dies answers for the item that it died of."""
    answers: list[str | None] = []
    while len(answers) < len(items):
        request = {"question": question, "items": items[len(answers) :], "root": str(data_root) if data_root else None}
        command = [sys.executable, "-m", "fcilbench.execution.probe"]
        try:
            done = subprocess.run(
                command, input=json.dumps(request), capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            lines, end = done.stdout.splitlines(), f"the process died with code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            lines, end = _text(error.stdout).splitlines(), f"no answer within {_SECONDS:g} s"
        answers += [json.loads(line)["problem"] for line in lines]
        if len(answers) < len(items):
            answers.append(end)
    return answers


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def main() -> None:
    """Answers the request on standard input, one line an item, each as soon as it is known."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what plugins print must not be mistaken for an answer
    request = json.load(sys.stdin)
    root = Path(request["root"]) if request["root"] else None
    for item in request["items"]:
        answers.write(json.dumps({"problem": _problem(request["question"], item, root)}) + "\n")
        answers.flush()


def _problem(question: str, item: dict[str, Any], root: Path | None) -> str | None:
    try:
        if question == "cells":
            _probe_cell(Cell.model_validate(item["cell"]), item["device"], root)
        else:
            _probe_dataset(item["name"], item["params"], root)
    except FcilbenchError as error:
        return str(error) + (f" ({error.hint})" if error.hint else "")
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _probe_cell(cell: Cell, device: str, root: Path | None) -> None:
    from fcilbench.execution.jobs import build_experiment
    from fcilbench.federation.probe import probe

    probe(build_experiment(cell, root, device))


def _probe_dataset(name: str, params: dict[str, Any], root: Path | None) -> None:
    from typing import cast

    from fcilbench.api.dataset import Dataset
    from fcilbench.data.root import data_root
    from fcilbench.registry import entrypoints

    plugin = cast(type[Dataset], entrypoints.load(entrypoints.lookup("datasets", name)))
    plugin(plugin.Params.model_validate(params)).open(data_root(root))


if __name__ == "__main__":
    main()
