"""The GPUs of this machine as `nvidia-smi` sees them: a plan and a worker name them alike, and neither needs torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

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
