"""Wall time by phase and peak memory; a phase ends when the device has finished its work."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch


class Stopwatch:
    """Adds up wall-clock `seconds` by phase name.

    `saved` tells the seconds so far of work that was read instead of done, which count as well.
    """

    def __init__(self, device: torch.device, saved: Callable[[], float] = lambda: 0.0) -> None:
        self.seconds: dict[str, float] = {}
        self._device, self._saved = device, saved

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times a block as part of `phase`."""
        start = self._now()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self._now() - start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() + self._saved()


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new measurement of peak memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Linux: 5 resets the resident-set high-water mark. Elsewhere the peak is that of the process.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Returns the peak in bytes: the CUDA allocator's, or the resident set of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def device_name(device: torch.device) -> str:
    """Returns the device's name as rows print it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
