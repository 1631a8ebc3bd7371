"""How far results of one cell are apart when only the instruction set is another one.

    python -m benchmarks.spread FOLDER [--jobs 1] [--write]

Trains the cells of `benchmarks/spread.yaml` with torch's code for the oldest x86-64 processors, for AVX2 and for AVX512
(which this processor must have), each into a folder of its own in FOLDER; the same command continues. For each method
and metric the spread is the root of the mean squared difference over seeds and pairs of instruction sets. `--write`
puts the table into `fcilbench/results/spread.json`, by which `reproduce` and `results verify` judge rows of other
processors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks import common
from benchmarks.portability import PLAIN, ROOT, table
from fcilbench.results.agreement import SPREAD
from fcilbench.results.processor import processor
from fcilbench.results.row import all_metrics
from fcilbench.results.store import Store
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.row import Row


def train(folder: Path, jobs: int) -> dict[str, list[Row]]:
    """Trains the cells under each instruction set, and returns the rows."""
    found = {}
    for name, variables in PLAIN.items():
        out = folder / name
        command = [
            sys.executable,
            "-m",
            "fcilbench",
            "run",
            "benchmarks/spread.yaml",
            "--out",
            str(out),
            "--gpus",
            "none",
        ]
        options = ["--jobs", str(jobs), "--tracking", "none"]
        subprocess.run([*command, *options], cwd=ROOT, env={**os.environ, **variables}, check=True)
        found[name] = list(Store(out).latest().values())
    return found


def spread(found: dict[str, list[Row]]) -> dict[str, dict[str, float]]:
    """Returns the spread by method and `<metric>/<task identity>`, of metrics that follow from accuracies."""
    derived = {name for name, metric in METRICS.items() if metric.function is not None}
    values: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rows in found.values():
        for row in rows:
            for key, metric in all_metrics(row).items():
                if key.partition("/")[0] in derived and metric.value is not None:
                    values[row.plugins["aggregator"].name, key][row.seed].append(metric.value)
    result: dict[str, dict[str, float]] = defaultdict(dict)
    for (method, key), by_seed in sorted(values.items()):
        squares = [(a - b) ** 2 for own in by_seed.values() for a, b in itertools.combinations(own, 2)]
        result[method][key] = round(math.sqrt(sum(squares) / len(squares)), 6)
    return dict(result)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = train(options.folder, options.jobs)
    measured = spread(found)
    seeds = len({row.seed for rows in found.values() for row in rows})
    own = processor()
    about = (
        f"{', '.join(found)} on {own['name']} (family {own['family']}, model {own['model']}), {seeds} seeds, "
        "quick start federation on digits with 360 test images"
    )
    identities = ("none", "inferred", "oracle")
    lines = [
        [
            f"`{method.removeprefix('fcilbench/')}`",
            *(f"{100 * own.get(f'faa/{each}', math.nan):.1f}" for each in identities),
        ]
        for method, own in measured.items()
    ]
    print(f"{common.origin()}. {about}\n")
    print(table(["method", *(f"FAA, {each} (points)" for each in identities)], lines))
    if options.write:
        SPREAD.write_text(json.dumps({"measured": about, "spread": measured}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
