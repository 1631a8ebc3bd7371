"""The devices of this machine, found without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from fcilbench.errors import PrerequisiteError, UsageError

_QUERY = "index,uuid,name,memory.total,memory.free,driver_version"
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Gpu:
    """A GPU as `nvidia-smi` sees it; memory in bytes."""

    index: int
    uuid: str
    name: str
    memory: int
    free: int
    driver: str

    @property
    def facts(self) -> dict[str, str | int]:
        """Name, memory and driver as rows record them."""
        return {"gpu": self.name, "gpu_memory": self.memory, "driver": self.driver}


def find_gpus() -> list[Gpu]:
    """Returns the GPUs of this machine that `CUDA_VISIBLE_DEVICES` allows, in its order.

    A machine without a working `nvidia-smi` has none.
    """
    found = _ask_nvidia_smi()
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return found
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in allowed.split(",")):
        match = [gpu for gpu in found if entry == str(gpu.index) or (entry and gpu.uuid.startswith(entry))]
        if not match:
            break  # as in CUDA: an invalid entry hides itself and all later ones
        chosen.append(match[0])
    return chosen


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


def _ask_nvidia_smi() -> list[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in answer.splitlines():
        index, *parts = (part.strip() for part in line.split(","))
        if index.isdecimal() and len(parts) == 5:
            memory, free = (int(value) * _MIB if value.isdecimal() else 0 for value in parts[2:4])
            found.append(Gpu(int(index), uuid=parts[0], name=parts[1], memory=memory, free=free, driver=parts[4]))
    return found
