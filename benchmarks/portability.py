"""Whether numbers are equal on other processors: single operations, and the golden runs of every built-in method.

    python -m benchmarks.portability [--processors Nehalem Haswell EPYC] [--output FILE]

Other processors are emulated by `qemu-x86_64` (Debian: `apt-get install qemu-user`), about ten minutes each. Tables:

1. Operations of torch and numpy: how many differ from this machine, with portable numbers and without.
2. Cells x processors: the digest of the final models of each method's golden runs, with portable numbers.
3. Plain numbers under torch's code for other instruction sets, on this machine: how far the mean loss of the first
   round and of the last one are off, relative to portable numbers. `tests/test_golden.py` takes its tolerance from it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from benchmarks import common
from fcilbench.results.processor import processor
from fcilbench.worker.portable import PORTABLE

ROOT = Path(__file__).parents[1]
PLAIN = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX512": {"ATEN_CPU_CAPABILITY": "avx512"},
}


def golden_runs() -> Any:
    """Returns the module of the golden runs, which is no package."""
    spec = spec_from_file_location("golden_runs", ROOT / "tests" / "golden_runs.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(command: Sequence[str], environment: Mapping[str, str]) -> Any:
    """Returns the JSON that a program prints, on one thread."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return json.loads(subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, check=True).stdout)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def operations_table(emulators: Mapping[str, Sequence[str]]) -> str:
    program = [sys.executable, "-W", "ignore", "-m", "benchmarks.operations"]
    here = {"portable": answer([*program, "--portable"], PORTABLE), "plain": answer(program, {})}
    rows = []
    for name, emulator in emulators.items():
        found = {
            "portable": answer([*emulator, *program, "--portable"], PORTABLE),
            "plain": answer([*emulator, *program], {}),
        }
        off = {kind: [key for key in here[kind] if here[kind][key] != found[kind][key]] for kind in here}
        total = len(here["portable"])
        named = ", ".join(off["portable"]) or "none"
        rows.append([name, f"{len(off['plain'])} of {total}", f"{len(off['portable'])} of {total}: {named}"])
    return table(["processor", "plain: operations that differ", "portable: operations that differ"], rows)


def cells_table(runs: Any, emulators: Mapping[str, Sequence[str]]) -> str:
    methods = sorted(runs.METHODS)
    here = runs.computed(methods)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # an emulator uses one core
        started = {name: pool.submit(runs.computed, methods, emulator=own) for name, own in emulators.items()}
        found = {name: future.result() for name, future in started.items()}
    rows = []
    for method in methods:
        for modality in runs.MODALITIES:
            kept = here[method][modality]
            if "declined" in kept:
                continue
            equal = ["equal" if found[name][method][modality] == kept else "DIFFERS" for name in emulators]
            rows.append([f"{method}, {modality}", kept["model_digest"][7:19], *equal])
    return table(["golden run", "model digest here", *emulators], rows)


def losses_table(runs: Any) -> str:
    portable = runs.computed(sorted(runs.METHODS))
    program = [sys.executable, "-W", "ignore", runs.__file__, "--plain"]
    plain = {name: answer(program, variables) for name, variables in PLAIN.items()}
    rows = []
    for method, modalities in portable.items():
        for modality, kept in modalities.items():
            if "declined" in kept or kept["losses"][0] is None:
                continue
            losses = [each[method][modality]["losses"] for each in plain.values()]
            digests = {each[method][modality]["model_digest"] for each in plain.values()}
            off = [max(abs(own[at] / kept["losses"][at] - 1) for own in losses) for at in (0, -1)]
            rows.append([f"{method}, {modality}", str(len(digests)), *(f"{value:.1e}" for value in off)])
    return table(["golden run", f"models of {', '.join(plain)}", "first loss", "last loss"], rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processors", nargs="*", default=["Nehalem", "Haswell", "EPYC"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    qemu = shutil.which("qemu-x86_64")
    if options.processors and qemu is None:
        sys.exit("qemu-x86_64 is missing: apt-get install qemu-user, or say --processors with no name after it")
    emulators = {name: [str(qemu), "-cpu", name] for name in options.processors}
    runs, own = golden_runs(), processor()
    sets = " ".join(own["instruction_sets"])
    machine = f"This machine: {own['name']}, family {own['family']}, model {own['model']} ({sets})."
    versions = f"Versions: {', '.join(f'{name} {value}' for name, value in runs.versions().items())}."
    parts = [lambda: "# Portable numbers on other processors", lambda: f"{common.origin()}. {machine} {versions}"]
    if emulators:
        parts += [lambda: f"## Operations\n\n{operations_table(emulators)}"]
        parts += [lambda: f"## Cells x processors\n\n{cells_table(runs, emulators)}"]
    parts += [lambda: f"## Plain numbers\n\n{losses_table(runs)}"]
    for number, part in enumerate(parts):  # each as soon as it is known: they take minutes
        text = f"{chr(10) * bool(number)}{part()}\n"
        print(text, flush=True)
        if options.output:
            with options.output.open("a" if number else "w", encoding="utf-8") as file:
                file.write(text)


if __name__ == "__main__":
    main()
