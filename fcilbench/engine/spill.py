"""Large tensors that do not fit into memory: they lie elsewhere and are used, and computed with, like any other.

On a CPU the tensor is mapped from a file without a name in `$TMPDIR` (by default `/var/tmp`, which is a disk): the
kernel writes pages out when memory is short. On a GPU it lies in host memory that kernels reach over the bus. Whether a
tensor is spilled depends on the machine; its values, and what is computed from them, do not.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

FREE = 0.25
"""Share of the memory that stays free for everything else: a tensor that would leave less is spilled."""
SMALL = 1 << 20
"""Bytes up to which a tensor is never spilled."""

_cudart: Any = torch.cuda.cudart


def empty(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Returns an uninitialised tensor with the type and device of another, spilled if it does not fit."""
    size = math.prod(shape) * like.element_size()
    return like.new_empty(shape) if size <= SMALL or _fits(size, like.device) else _elsewhere(shape, like)


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that will be kept for a while: itself, or a spilled copy if memory has become short."""
    if tensor.nbytes <= SMALL or _fits(0, tensor.device):
        return tensor
    return _elsewhere(tensor.shape, tensor).copy_(tensor)


def _elsewhere(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    size = math.prod(shape) * like.element_size()
    if like.device.type == "cuda":
        whole = torch.as_tensor(_HostMemory(size), device=like.device)
        return whole.view(like.dtype).view(tuple(shape))
    with tempfile.NamedTemporaryFile(dir=os.environ.get("TMPDIR", "/var/tmp")) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and would be a SIGBUS later
        return torch.from_file(file.name, shared=True, size=math.prod(shape), dtype=like.dtype).view(tuple(shape))


class _HostMemory:
    """Host memory as an array of a GPU; with unified addressing both know it by one pointer."""

    def __init__(self, size: int) -> None:
        self._memory = torch.empty(size, dtype=torch.uint8)
        pointer = self._memory.data_ptr()
        if error := int(_cudart().cudaHostRegister(pointer, size, 0)):
            raise MemoryError(f"{size / 1e9:.1f} GB of host memory cannot be pinned for the GPU (CUDA error {error})")
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 2}

    def __del__(self) -> None:
        _cudart().cudaHostUnregister(self._memory.data_ptr())


def _fits(size: int, device: torch.device) -> bool:
    """Says whether so many more bytes leave enough memory of a device free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free, total = _host_memory()
    return free - size >= FREE * total


def _host_memory() -> tuple[int, int]:
    """Returns the free and all bytes of this machine, or of a control group (version 2) that limits this process."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free, total = (int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    group = Path("/sys/fs/cgroup", Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip())
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError, KeyError):  # no group, or no limit: `max`
            limit = int((folder / "memory.max").read_text())
            used = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())["anon"]
            free, total = min(free, limit - int(used)), min(total, limit)
    return free, total
