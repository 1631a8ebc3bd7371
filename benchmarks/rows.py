"""What the commands on results cost with many rows: processor seconds and peak memory of `show`, `board` and others.

It makes a results folder of 20,000 rows with their curves: the cells of a suite of four methods and many seeds at two
learning rates (a suite has at most 10,000 cells), each with the result of one published row, whose accuracies are moved
a little so that no two rows are equal. Their identities are those of their cells, so that `plan` of the suite finds all
of its cells done. Each command is a process of its own.

python -m benchmarks.rows
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fcilbench.results.curves import own_file
from fcilbench.results.row import code_digest, plugin_records, row_params
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell
from fcilbench.spec.identity import cell_id
from fcilbench.spec.row import Row
from fcilbench.suite.expand import expand
from fcilbench.suite.load import load_suite

PUBLISHED = Path(__file__).parents[1] / "leaderboards" / "quickstart"
SUITE = """
fcilbench: 1
name: many
protocol: {{clients: 3, rounds: 4, local_epochs: 3, batch_size: 16, lr: 1e-3}}
grid:
  dataset: [digits]
  backbone:
    - use: timm
      label: vit-mini
      model: vit_tiny_patch16_224
      weights: none
      args: {{img_size: 8, patch_size: 4, embed_dim: 64, depth: 2, num_heads: 2, class_token: false, global_pool: avg}}
  partition: [{{dirichlet: 0.5}}]
  aggregator: [fedavg, sum, ccvr, joint]
  stress: [none]
seeds: {seeds}
evaluate: {{task_identity: [none, inferred, oracle]}}
"""


def make(folder: Path, rows: int) -> Path:
    """Writes the suite and a published folder with a row for each of its cells, and returns the suite."""
    suite = folder / "many.yaml"
    suite.write_text(SUITE.format(seeds=rows // 8))
    cells = [cell for lr in ("1e-3", "2e-3") for cell in expand(load_suite(suite, [f"protocol.lr={lr}"])).cells]
    source, store = Store(PUBLISHED), Store(folder / "many")
    template = next(row for row in source.scan() if row.coords["aggregator"] == "sum")
    record = source.environment(template.env)
    resolved = load_suite(suite).suite.model_dump(mode="json", exclude_none=True)
    assert record is not None
    known = {"env": store.save_environment(record), "suite_digest": store.save_suite(resolved), "suite": "many"}
    curve = source.rounds(template.cell_id)
    found: list[tuple[str, list[Any]]] = []

    def written() -> Iterator[Row]:
        for number, cell in enumerate(cells):
            row = row_of(cell, template, random.Random(number))
            found.append((row.cell_id, list(row.accuracy.items())))
            yield row.model_copy(update=known)

    store.extend(written())
    store.curves.add(curve_of(identity, dict(accuracy), curve) for identity, accuracy in found)
    return suite


def row_of(cell: Cell, template: Row, random_: random.Random) -> Row:
    """Returns the template as the row of another cell, with accuracies that are moved by up to 0.05."""
    accuracy = {
        key: [[min(1.0, max(0.0, (value or 0.0) + random_.uniform(-0.05, 0.05))) for value in line] for line in matrix]
        for key, matrix in template.accuracy.items()
    }
    return template.model_copy(
        update={
            "cell_id": cell_id(cell),
            "coords": cell.coords,
            "plugins": plugin_records(cell),
            "params": row_params(cell),
            "seed": cell.seeds.index,
            "seeds": {role: cell.seeds.of(role) for role in template.seeds},
            "curve_ref": own_file(cell_id(cell)),
            "accuracy": accuracy,
            "code": template.code.model_copy(update={"digest": code_digest(cell)}),
        }
    )


def curve_of(identity: str, accuracy: dict[Any, Any], events: list[dict[str, Any]]) -> bytes:
    """Returns the template's curve as that of another cell, with its accuracies."""
    own = [
        {**event, "accuracy": {key: matrix[event["task"]] for key, matrix in accuracy.items()}}
        if event["event"] == "task"
        else event
        for event in events
    ]
    return json.dumps({"cell_id": identity, "events": own}).encode()


def measure(command: list[str], folder: Path) -> dict[str, Any]:
    """Runs a command; returns its seconds of processor and of the clock, and its peak memory in MB."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, error = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, error.decode()[-2000:]
    return {
        "processor s": round(usage.ru_utime + usage.ru_stime, 1),
        "clock s": round(time.perf_counter() - start, 1),
        "peak MB": round(usage.ru_maxrss * 1024 / 1e6),
        "printed lines": output.count(b"\n"),
    }


def processor() -> str:
    """Returns the processor as lscpu names it."""
    facts = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    named = dict(line.split(":", 1) for line in facts.splitlines() if ":" in line)
    model = [named.get(key, "?").strip() for key in ("Model name", "CPU family", "Model")]
    return "{}, family {}, model {}, {} cores".format(*model, os.cpu_count())


def main() -> None:
    """Prints a table of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--keep", type=Path, default=None, help="folder in which the rows are made and kept")
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        if options.make:
            make(folder, options.rows)
            return
        if not (folder / "many").exists():  # in a process of its own: the peak memory of a process is also its child's
            new = [
                sys.executable,
                "-m",
                "benchmarks.rows",
                "--make",
                "--rows",
                str(options.rows),
                "--keep",
                str(folder),
            ]
            subprocess.run(new, check=True)
        sizes = {path.name: path.stat().st_size for path in sorted((folder / "many").iterdir())}
        print(processor(), f"Python {platform.python_version()}", sep=", ")
        print(", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items()))
        commands = {
            "show": ["show", "--out", "many"],
            "board accuracy": ["board", "accuracy", "--out", "many"],
            "plan": ["plan", "many.yaml", "--out", "many"],
            "results merge": ["results", "merge", "many", "--out", tempfile.mkdtemp(dir=made)],
        }
        python = [sys.executable, "-m", "fcilbench"]
        for first in ("plan", "board accuracy"):  # fills the registry's cache
            measure([*python, *commands[first]], folder)
        lines = [{"command": name, **measure([*python, *command], folder)} for name, command in commands.items()]
        heads = list(lines[0])
        print("| " + " | ".join(heads), "---".join("|" * (len(heads) + 1)), sep=" |\n")
        for line in lines:
            print("| " + " | ".join(str(value) for value in line.values()) + " |")


if __name__ == "__main__":
    main()
