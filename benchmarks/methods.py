"""What every built-in method costs beside FedAvg, in the same small federation.

    python -m benchmarks.methods --out FILE.jsonl [--methods NAME ...] [--every 4]

Scikit-learn's digits at 32 pixels, two layers of a ViT-Tiny without weights, 2 tasks of 5 classes, 3 clients, 2 rounds
of 2 epochs. Each method has its defaults or, where they are too large for such networks, those of the conformance kit
(`kit_params`): generators are trained for a few steps only, and `benchmarks.synthesis` has what a step costs.

Each run is a fork of one process that has imported everything, with one thread, and is timed in processor seconds,
which other work on the machine disturbs least. FedAvg runs again after every few methods, and a method is compared with
the mean of FedAvg's run before it and the one after it. Memory is the peak of the resident set above that at the start.
Finished runs are in the file: the same command goes on where it was stopped, and prints the table at its end.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from importlib.metadata import EntryPoint, entry_points
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks import common
from fcilbench.engine import meters
from fcilbench.federation.experiment import Experiment, Unsupported, build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.plugins.datasets.digits import Digits
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Evaluation, Partition, Protocol, Runtime

METHODS = {e.name: e for e in entry_points(group="fcilbench.aggregators") if e.value.startswith("fcilbench.")}
OPTIONS = {"coda-prompt": {"components": 6}}
"""Options of methods whose defaults are too large for the network, beside those of the conformance kit."""
CONTROL, TASKS, ROUNDS = "fedavg", 2, 2
VIT = {"img_size": 32, "patch_size": 8, "depth": 2}


def experiment(method: EntryPoint) -> Experiment:
    """Returns the federation in which a method is measured."""
    plugin: Any = method.load()
    return Experiment(
        dataset=Digits(Digits.Params(train_per_class=30, test_per_class=20)),
        backbone=Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args=VIT)),
        aggregator=plugin(plugin.Params(**OPTIONS.get(method.name, plugin.kit_params))),
        stressor=NoStress(),
        data_root=Path(),
        protocol=Protocol(clients=3, rounds=ROUNDS, local_epochs=2),
        partition=Partition(kind="iid"),
        tasks=TASKS,
        evaluate=Evaluation(task_identity=("none",)),
        runtime=Runtime(threads=1, checkpoint="never"),
        device="cpu",
    )


def measure(method: EntryPoint) -> dict[str, Any]:
    """Returns the processor seconds, bytes and peak memory of a method's run, or why it declines."""
    here, device = experiment(method), torch.device("cpu")
    meters.reset_peak_memory(device)
    before = meters.peak_memory(device)
    clock = SimpleNamespace(perf_counter=time.process_time)
    with tempfile.TemporaryDirectory() as folder, patch.object(meters, "time", clock):
        try:
            cost = run_experiment(here, Path(folder)).cost
        except Unsupported as reason:
            return {"method": method.name, "declined": str(reason)}
    return {
        "method": method.name,
        "round": (cost.training_s + cost.aggregation_s) / (TASKS * ROUNDS),
        "task_end": cost.task_end_s / TASKS,
        "evaluation": cost.evaluation_s / TASKS,
        "memory": meters.peak_memory(device) - before,
        "up": cost.bytes_up,
        "down": cost.bytes_down,
        "module": cost.module,
        "client_state": cost.client_state,
        "server_state": cost.server_state,
    }


def forked(method: EntryPoint) -> dict[str, Any]:
    """Measures a method in a process of its own."""

    def child(end: Connection) -> None:
        try:
            end.send(measure(method))
        except Exception as error:  # a method that breaks is a row, too
            end.send({"method": method.name, "declined": f"{type(error).__name__}: {error}"})

    context = multiprocessing.get_context("fork")
    mine, other = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(other,))
    process.start()
    other.close()
    try:
        found: dict[str, Any] = mine.recv()
    except EOFError:
        found = {"method": method.name, "declined": "the process has ended without a result"}
    process.join()
    return found


def compared(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the table's rows: each method beside FedAvg's runs before and after it."""
    rows = []
    for place, run in enumerate(runs):
        controls = [n for n, other in enumerate(runs) if other["method"] == CONTROL and n != place]
        before = [n for n in controls if n < place][-1:]
        near = [runs[n] for n in (*before, *[n for n in controls if n > place][:1])]
        if "declined" in run or not near:
            rows.append({"method": run["method"], "round": run.get("declined", "-")})
            continue
        base = {key: sum(one[key] for one in near) / len(near) for key in run if key != "method"}
        rows.append(
            {
                "method": run["method"],
                "round": f"{run['round'] / base['round']:.2f}",
                "task end, ms": f"{1000 * run['task_end']:.0f}",
                "evaluation": f"{run['evaluation'] / base['evaluation']:.2f}",
                "memory": f"{run['memory'] / base['memory']:.2f}",
                "up": f"{run['up'] / base['up']:.3f}",
                "down": f"{run['down'] / base['down']:.3f}",
                **{key: f"{run[key] / 1e6:.3f}" for key in ("module", "client_state", "server_state")},
            }
        )
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a Markdown table; MB is 10^6 bytes."""
    heads = ["method", "round", "task end, ms", "evaluation", "memory", "up", "down"]
    states = ["module", "client_state", "server_state"]
    lines = ["| " + " | ".join([*heads, *(f"{key.replace('_', ' ')}, MB" for key in states)]) + " |"]
    lines.append("|" + "---|" * (len(heads) + len(states)))
    lines += ["| " + " | ".join(str(row.get(key, "")) for key in (*heads, *states)) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Measures what the file lacks, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="file of the runs, one JSON record a line")
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS), choices=sorted(METHODS), metavar="NAME")
    parser.add_argument("--every", type=int, default=4, help="methods between two runs of FedAvg")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    known = {run["method"] for run in runs}
    left = [name for name in options.methods if name not in known and name != CONTROL]
    order = [CONTROL] if left else []
    for start in range(0, len(left), options.every):
        order += [*left[start : start + options.every], CONTROL]
    for name in dict.fromkeys(order):
        METHODS[name].load()  # so that no run's memory and seconds have its imports
    if order:
        build(experiment(METHODS[CONTROL]))  # neither those of scikit-learn and timm
    for name in order:
        runs.append(forked(METHODS[name]))
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(runs[-1]) + "\n")
    print(common.origin(), markdown(compared(runs)), sep="\n\n")


if __name__ == "__main__":
    main()
