"""One communication round of every registered method: images/s, share of each phase, memory.

Training's operations a second are printed as a share of what a large matrix product reaches, in both precisions.

python benchmarks/round.py --workload vit-b            # on a GPU: the paper's CIFAR-100 round
python benchmarks/round.py --workload vit-small-cpu    # on a CPU; -lora: adapters of rank 4 instead of the whole model
python benchmarks/round.py --tasks 2                   # a round of the second task, with what a method then adds
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from benchmarks.timing import best
from fcilbench.api.schedule import Phase
from fcilbench.engine.meters import Stopwatch, peak_memory, reset_peak_memory
from fcilbench.federation.experiment import Federation, RoundContext, build, place_replay
from fcilbench.federation.round import collect_task_statistics, run_round, update_rows
from fcilbench.registry import entrypoints


def measure(
    name: str, params: dict[str, Any], work: common.Workload, *, device: str, precision: str, runtime: dict[str, Any]
) -> dict[str, Any]:
    """Times the second of two rounds (the first captures and warms up) of the last task, and the end of the one before.

    A task before is trained for one round.
    """
    method = entrypoints.load(entrypoints.lookup("aggregators", name))
    aggregator = method(method.Params(**params))
    federation = build(common.experiment(work, aggregator, device, precision, **runtime))
    server, target = federation.server, torch.device(device)
    aggregator.begin(server)
    rows, end = update_rows(federation), 0.0
    *before, phase = federation.schedule.phases
    for earlier in before:
        _enter(federation, earlier)
        run_round(federation, RoundContext(earlier, 0), rows, Stopwatch(target))
        start = time.perf_counter()
        asked, context = aggregator.wants_task_statistics(server), RoundContext(earlier, earlier.rounds)
        aggregator.end_task(server, collect_task_statistics(federation, context) if asked else {})
        end = time.perf_counter() - start
    _enter(federation, phase)
    run_round(federation, RoundContext(phase, 0), rows, Stopwatch(target))
    watch = Stopwatch(target)
    reset_peak_memory(target)
    start = time.perf_counter()
    run_round(federation, RoundContext(phase, 1), rows, watch)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    images = sum(map(len, phase.clients)) * phase.epochs if aggregator.trains else 0
    used = images * common.flops_per_image(work) / max(watch.seconds.get("training", 0.0), 1e-9)
    return {
        "method": name,
        "precision": precision,
        "round_s": seconds,
        "images_per_s": images / seconds,
        "tflop_per_s": used / 1e12,
        "of_peak": f"{used / peak_flops(device, precision):.0%}",
        "training": f"{watch.seconds.get('training', 0.0) / seconds:.1%}",
        "aggregation": f"{watch.seconds.get('aggregation', 0.0) / seconds:.1%}",
        **({"task_end_s": end} if before else {}),
        "peak_GB": peak_memory(target) / 1e9,
        "sent_MB": 4e-6 * len(federation.server.vector),  # by a client, as its update
        "captured": "no" if device == "cpu" or runtime["capture"] == "off" or _plain(federation) else "yes",
    }


def _enter(federation: Federation, phase: Phase) -> None:
    """Begins a task."""
    aggregator, server = federation.experiment.aggregator, federation.server
    server.enter(phase.task, phase.after)
    aggregator.begin_task(server)
    federation.channel.publish(server.vector, server.counters)
    federation.replay = place_replay(federation, aggregator.replay(server))


def peak_flops(device: str, precision: str) -> float:
    """Returns the FLOP/s of large matrix products on this machine, measured now: the best of five."""
    size, dtype = 8192 if device == "cuda" else 1536, torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    (seconds,) = best({"product": lambda: left @ right}, 5, torch.device(device)).values()
    return 2.0 * size**3 / seconds


def _plain(federation: Federation) -> bool:
    """Whether a step could not be captured."""
    return any("not captured" in text for text in federation.server.warnings)


def main() -> None:
    """Prints the table and, if asked, writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=common.WORKLOADS, default="vit-small-cpu")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default=None)
    parser.add_argument("--capture", choices=["auto", "off"], default="auto")
    parser.add_argument("--methods", default="all", help="comma-separated names, or all")
    parser.add_argument("--tasks", type=int, default=1, help="tasks, each of as many images; the last one is timed")
    parser.add_argument("--params", type=json.loads, default={}, help='options by method: {"target": {"g_ep": 2}}')
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    precisions = [options.precision] if options.precision else ["fp32", "bf16"]
    names = (
        [ref.short for ref in entrypoints.find("aggregators")]
        if options.methods == "all"
        else options.methods.split(",")
    )
    work, runtime = replace(common.WORKLOADS[options.workload], tasks=options.tasks), {"capture": options.capture}
    rows = [
        measure(name, options.params.get(name, {}), work, device=device, precision=precision, runtime=runtime)
        for precision in precisions
        for name in names
    ]
    fedavg = {row["precision"]: row["round_s"] for row in rows if row["method"] == "fedavg"}
    for row in rows:
        row["of_fedavg"] = row["round_s"] / fedavg[row["precision"]] if fedavg else "-"
    print(f"{options.workload}, task {options.tasks}, {common.card(device)}")
    print(common.table(rows))
    name = f"round/{options.workload}/{'+'.join(precisions)}/{options.capture}" + f"/{options.tasks}" * (
        options.tasks > 1
    )
    common.write(options.json, name, device, rows)


if __name__ == "__main__":
    main()
