"""MKL's code for a processor of AMD against the code that it takes for one of Intel: one product, one training step.

MKL asks who made the processor. On one of AMD it takes its code for AVX2 even where AVX512 is there. A library of one
function, which is loaded before it, answers the question for it (`docs/scaling.md`). This compiles that library and
measures both in processes of their own, in turn.

    python -m benchmarks.mkl_on_amd --pairs 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import bf16, common
from fcilbench.engine.rounding import rounding
from fcilbench.results.processor import processor

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


def built(folder: Path) -> Path:
    """Compiles the library and returns its file."""
    library = folder / "libmklintel.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return library


def measured(repeats: int) -> dict[str, Any]:
    """Returns the seconds of both works in this process, and how it rounds."""
    torch.set_num_threads(1)
    return {
        "product": bf16.product("fp32", repeats),
        "step": bf16.step("fp32", repeats),
        "rounding": rounding(),
    }


def rows(pairs: int, repeats: int) -> list[dict[str, object]]:
    """Measures both in turn and returns a row of the table for each work."""
    found: dict[str, list[dict[str, Any]]] = {"AMD": [], "Intel": []}
    with tempfile.TemporaryDirectory() as folder:
        library = built(Path(folder))
        for name in [*found] * pairs:
            variables = {"LD_PRELOAD": str(library)} if name == "Intel" else {}
            command = [sys.executable, "-m", "benchmarks.mkl_on_amd", "--child", "--repeats", str(repeats)]
            done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    result: list[dict[str, object]] = []
    for work in ("product", "step"):
        ratios = [amd[work] / intel[work] for amd, intel in zip(found["AMD"], found["Intel"], strict=True)]
        least = {f"as {name}_s": min(each[work] for each in own) for name, own in found.items()}
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        result.append({"work": work, **least, "AMD/Intel": statistics.median(ratios), "of the pairs": spread})
    print("rounding:", ", ".join(f"{own[0]['rounding']} as {name}" for name, own in found.items()))
    return result


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options.repeats)))
        return
    own = processor()
    print(f"{common.origin()}. {own['name']}, family {own['family']}, model {own['model']}")
    print(common.table(rows(options.pairs, options.repeats)))


if __name__ == "__main__":
    main()
