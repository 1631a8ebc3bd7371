"""Seconds and peak memory of functions, measured in turns, and the command line of the benchmarks that need no more."""

from __future__ import annotations

import argparse
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from fcilbench.engine.meters import peak_memory, reset_peak_memory

Measure = Callable[[int, int, int, torch.device], dict[str, object]]
"""From the number of vectors, D, repeats and device to the figures."""


def run(name: str, about: str | None, rows: tuple[str, str], measure: Measure, table: Callable[[Any], str]) -> None:
    """Measures as the command line says, prints the table and, if asked, writes the figures.

    Args:
        name: Of the benchmark.
        about: Its module's docstring.
        rows: Option for the number of vectors, and its help.
        measure: Makes the figures.
        table: Shows them.
    """
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument(rows[0], dest="count", type=int, default=10, help=rows[1])
    parser.add_argument("--size", type=int, default=86_000_000 if cuda else 5_400_000, help="D")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="torch CPU threads")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = measure(options.count, options.size, options.repeats, torch.device(options.device))
    print(table(found))
    common.write(options.json, name, options.device, [found])


def best(functions: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Returns the best seconds of each, measured in turns."""
    seconds = dict.fromkeys(functions, float("inf"))
    for turn in range(repeats + 1):  # the first turn warms up
        for name, function in functions.items():
            _wait(device)
            start = time.perf_counter()
            function()
            _wait(device)
            if turn:
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def extra_memory(function: Callable[[], object], device: torch.device) -> int:
    """Returns the peak of the bytes that a call allocates."""
    gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        reset_peak_memory(device)
        function()
        _wait(device)
        return peak_memory(device) - before
    with Sampler() as sampler:
        function()
    return sampler.peak


class Sampler:
    """Peak of the process's resident set above where it began, sampled every millisecond."""

    def __enter__(self) -> Sampler:
        self.peak, self._done, self._start = 0, threading.Event(), _resident()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(1e-3):
            self.peak = max(self.peak, _resident() - self._start)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
