"""Spatial SUM's three passes as Triton kernels: whether they run, in one place. Imported only where rows are on a GPU.

Each pass returns None where its kernel does not run, and the caller goes on with plain torch. The first use of a
device and a number of rows compares the kernels with the torch path on a small matrix there. If they differ, or
anything in Triton fails, they are off for the rest of the process, and one `RuntimeWarning` says why.
`FCILBENCH_KERNELS=off` in the environment forces the torch path.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

T = TypeVar("T")

ENVIRONMENT = "FCILBENCH_KERNELS"
LIMIT = 64
"""N beyond which the pairs of rows, not the memory, take the time: left to the linear-algebra library."""


@dataclass
class State:
    """What this process found out.

    Attributes:
        off: Why the kernels are off; None: they are not.
        checked: Devices and numbers of rows on which they equal the torch path.
    """

    off: str | None = None
    checked: set[tuple[torch.device, int]] = field(default_factory=set)


STATE = State()


def usable(rows: torch.Tensor) -> bool:
    """Returns whether the kernels run on rows `[N, D]`: float32 on a GPU, columns side by side, N <= 64, checked."""
    count, size = rows.shape
    fits = rows.is_cuda and rows.dtype == torch.float32 and rows.stride(1) == 1 and 0 < count <= LIMIT and size > 0
    if not fits or STATE.off is not None or os.environ.get(ENVIRONMENT) == "off":
        return False
    key = rows.device, count
    new = key not in STATE.checked and importlib.util.find_spec("triton") is not None
    if new and _guarded(rows, lambda: _check(rows.device, count)):
        STATE.checked.add(key)
    return key in STATE.checked


def statistics(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Runs `launch.statistics`, or returns None."""
    if not usable(rows):
        return None
    from fcilbench.vectors.kernels import launch

    return _guarded(rows, lambda: launch.statistics(rows))


def gram(rows: torch.Tensor, mean: torch.Tensor, reach: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Runs `launch.gram`, or returns None."""
    if not usable(rows):
        return None
    from fcilbench.vectors.kernels import launch

    return _guarded(rows, lambda: launch.gram(rows, mean, reach))


def merge(
    weights: torch.Tensor, rows: torch.Tensor, mean: torch.Tensor, reach: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Runs `launch.merge`, or returns None."""
    if not usable(rows):
        return None
    from fcilbench.vectors.kernels import launch

    return _guarded(rows, lambda: launch.merge(weights, rows, mean, reach))


def _check(device: torch.device, count: int) -> bool:
    from fcilbench.vectors.kernels.check import check  # imports Triton, which may fail

    check(device, count)
    return True


def _guarded(rows: torch.Tensor, call: Callable[[], T]) -> T | None:
    """Calls on the rows' device. On an exception the kernels are off, and the result is None."""
    try:
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
            return call()
    except torch.OutOfMemoryError:
        raise  # The torch path would not fit either; the engine has an answer to this one.
    except Exception as error:
        message = str(error).strip() or "no message"
        STATE.off = f"{type(error).__name__}: {message.splitlines()[0]}"
        warnings.warn(f"SUM runs in plain torch, its Triton kernels are off: {STATE.off}", RuntimeWarning, stacklevel=2)
        return None
