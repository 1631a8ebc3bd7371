"""Which devices this machine lends, found without torch."""

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
            break  # as CUDA does: an invalid entry hides itself and all that follow
        chosen.append(match[0])
    return chosen


def choose_devices(option: str) -> list[str]:
    """Turns `--gpus` into the `CUDA_VISIBLE_DEVICES` value of each device to use; one empty value means the CPU.

    Args:
        option: `auto` (every visible GPU, else the CPU), `none` (the CPU), or indices such as `0,1`.

    Raises:
        UsageError: If the option is none of these.
        PrerequisiteError: If a GPU that it names is not here.

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
    """Returns name, memory and driver of one of `choose_devices` as rows record them; nothing for the CPU."""
    for gpu in find_gpus() if visible else []:
        if visible in (str(gpu.index), gpu.uuid):
            return {"gpu": gpu.name, "gpu_memory": gpu.memory, "driver": gpu.driver}
    return {}


def default_jobs(devices: list[str], threads: int) -> int:
    """Returns how many cells share a device by default: one on a GPU, on a CPU one per `threads` cores."""
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
    return [gpu for line in answer.splitlines() if (gpu := _parse(line)) is not None]


def _parse(line: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != len(_QUERY.split(",")) or not parts[0].isdecimal():
        return None
    memory, free = (int(value) * _MIB if value.isdecimal() else 0 for value in parts[3:5])
    return Gpu(index=int(parts[0]), uuid=parts[1], name=parts[2], memory=memory, free=free, driver=parts[5])
