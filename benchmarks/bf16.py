"""bfloat16 against float32 on a CPU with bf16 instructions, and on one without: one product and one training step.

A processor without them is played by `ONEDNN_MAX_CPU_ISA=AVX2` and `ATEN_CPU_CAPABILITY=avx2`, which take effect before
torch is imported: each row is measured in a process of its own.

    python -m benchmarks.bf16 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import common
from fcilbench.api.aggregator import Aggregator
from fcilbench.engine.minibatches import Work
from fcilbench.engine.trainer import Objective
from fcilbench.federation.experiment import build
from fcilbench.federation.tasks import stream
from fcilbench.results.processor import processor

SIZE = 512
"""Rows and columns of the two factors of the product."""
FORMATS = ("fp32", "bf16")
PLAYED = {"native": {}, "without": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}}


def product(precision: str, repeats: int) -> float:
    """Returns the seconds of one product of two square matrices, 2 SIZE^3 operations."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
    return _best(lambda: left @ right, 10 * repeats)


def step(precision: str, repeats: int) -> float:
    """Returns the seconds of one training step of the small ViT, 16 images, as the engine runs it."""
    method = Aggregator()
    federation = build(common.experiment(common.WORKLOADS["vit-small-cpu"], method, "cpu", precision))
    phase = federation.schedule.phases[0]
    work = Work(torch.from_numpy(phase.clients[0][:16]), phase.task, 1, 16)
    objective = Objective(method.loss, method.gradient, {})

    def once() -> None:
        federation.trainer.train(objective, work, stream(0, "batches"))

    return _best(once, repeats)


def _best(function: Callable[[], object], repeats: int) -> float:
    """Returns the least processor time of a call on one thread, which other work on the machine hardly changes."""
    seconds = []
    for _ in range(repeats + 1):  # the first one warms up
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return min(seconds[1:])


def measured(repeats: int) -> dict[str, float]:
    """Returns the seconds of both works in both formats, on the processor as this process sees it."""
    torch.set_num_threads(1)
    functions = {"product": product, "step": step}
    return {f"{name} {precision}": run(precision, repeats) for name, run in functions.items() for precision in FORMATS}


def rows(repeats: int) -> list[dict[str, object]]:
    """Measures each processor in a process of its own and returns a row of the table for each and each work."""
    found: list[dict[str, object]] = []
    for name, variables in PLAYED.items():
        command = [sys.executable, "-m", "benchmarks.bf16", "--child", "--repeats", str(repeats)]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
        seconds = json.loads(done.stdout.splitlines()[-1])
        for work in ("product", "step"):
            fp32, bf16 = seconds[f"{work} fp32"], seconds[f"{work} bf16"]
            found.append({"processor": name, "work": work, "fp32_s": fp32, "bf16_s": bf16, "bf16/fp32": bf16 / fp32})
    return found


def main() -> None:
    """Prints the table, and writes it if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options.repeats)))
        return
    found = rows(options.repeats)
    sets = [name for name in processor()["instruction_sets"] if "bf16" in name]
    print(f"bf16 instructions here: {', '.join(sets) or 'none'}")
    print(common.table(found))
    common.write(options.json, "bf16", "cpu", found)


if __name__ == "__main__":
    main()
