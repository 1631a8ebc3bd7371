"""Seconds and peak memory of functions, measured in turns."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fcilbench.engine.meters import peak_memory, reset_peak_memory


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
