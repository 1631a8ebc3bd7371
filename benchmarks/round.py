"""One communication round of every registered method: images/s, FLOP utilisation, share of each phase, memory.

python benchmarks/round.py --workload vit-b            # on a GPU: the paper's CIFAR-100 round
python benchmarks/round.py --workload vit-small-cpu    # on a CPU; -lora: adapters of rank 4 instead of the whole model
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from fcilbench.engine.meters import Stopwatch, peak_memory, reset_peak_memory
from fcilbench.federation.experiment import Federation, RoundContext, build
from fcilbench.federation.round import run_round, update_rows
from fcilbench.registry import entrypoints


def measure(name: str, work: common.Workload, device: str, precision: str, runtime: dict[str, Any]) -> dict[str, Any]:
    """Times the second of two rounds (the first captures and warms up) and the task's end."""
    method = entrypoints.load(entrypoints.lookup("aggregators", name))()
    federation = build(common.experiment(work, method, device, precision, **runtime))
    method.begin(federation.server)
    phase = federation.schedule.phases[0]
    federation.server.enter(phase.task, phase.after)
    method.begin_task(federation.server)
    target = torch.device(device)
    rows = update_rows(federation)
    run_round(federation, RoundContext(phase, 0), rows, Stopwatch(target))
    watch = Stopwatch(target)
    reset_peak_memory(target)
    start = time.perf_counter()
    run_round(federation, RoundContext(phase, 1), rows, watch)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    images = sum(map(len, phase.clients)) * phase.epochs if method.trains else 0
    peak = next((value for key, value in common.PEAK.items() if key in common.card(device)), None)
    used = images * common.flops_per_image(work) / seconds
    return {
        "method": name,
        "round_s": seconds,
        "images_per_s": images / seconds,
        "tflop_per_s": used / 1e12,
        "utilisation": "-" if peak is None else f"{used / peak:.0%}",
        "training": f"{watch.seconds.get('training', 0.0) / seconds:.1%}",
        "aggregation": f"{watch.seconds.get('aggregation', 0.0) / seconds:.1%}",
        "peak_GB": peak_memory(target) / 1e9,
        "sent_MB": 4e-6 * len(federation.server.vector),  # by a client, as its update
        "captured": "no" if device == "cpu" or runtime["capture"] == "off" or _plain(federation) else "yes",
    }


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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    precision = options.precision or ("bf16" if device == "cuda" else "fp32")
    names = (
        [ref.short for ref in entrypoints.find("aggregators")]
        if options.methods == "all"
        else options.methods.split(",")
    )
    work, runtime = common.WORKLOADS[options.workload], {"capture": options.capture}
    rows = [measure(name, work, device, precision, runtime) for name in names]
    print(f"{options.workload}, {precision}, {common.card(device)}")
    print(common.table(rows))
    name = f"round/{options.workload}/{precision}/{options.capture}"
    common.write(options.json, name, device, rows)


if __name__ == "__main__":
    main()
