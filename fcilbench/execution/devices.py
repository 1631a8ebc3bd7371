"""The devices that cells run on, chosen without torch."""

from __future__ import annotations

import os

from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.worker.gpus import find_gpus


def choose_devices(option: str) -> list[str]:
    """Returns the value of `CUDA_VISIBLE_DEVICES` for each device that `--gpus` means; one empty value is the CPU.

    The option is `auto` (every visible GPU, else the CPU), `none` (the CPU), or indices such as `0,1`.

    Raises:
        UsageError: If the option is none of these.
        PrerequisiteError: If it names a GPU that is not visible here.

    Example:
        >>> choose_devices("none")
        ['']
    """
    if option == "none":
        return [""]
    if option == "auto":
        return [str(gpu.index) for gpu in find_gpus()] or [""]
    wanted = [part.strip() for part in option.split(",")]
    if not all(part.isdecimal() for part in wanted) or len(set(wanted)) != len(wanted):
        raise UsageError(f"--gpus {option}: not a list of GPUs", hint="write auto, none, or indices such as 0,1")
    here = [str(gpu.index) for gpu in find_gpus()]
    missing = [part for part in wanted if part not in here]
    if missing:
        raise PrerequisiteError(
            f"--gpus {option}: no GPU {', '.join(missing)} (visible here: {', '.join(here) or 'none'})",
            hint="use --gpus auto or --gpus none",
        )
    return wanted


def facts_of(visible: str) -> dict[str, str | int]:
    """Returns the facts of one of `choose_devices`; an empty map for the CPU."""
    return next((gpu.facts for gpu in find_gpus() if visible == str(gpu.index)), {}) if visible else {}


def default_jobs(devices: list[str], threads: int) -> int:
    """Returns how many cells share a device by default: 1 on a GPU; on a CPU, one for every `threads` cores."""
    if any(devices):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // threads)
