"""SUM's passes as Triton kernels: whether they run, in one place. Imported only where vectors are on a GPU.

Here are spatial SUM's three passes over clients; those over the basis of tasks are in `tasks`. Each returns None where
its kernel does not run, and the caller goes on with plain torch. The first use of a device and a number of rows
compares the kernels with the torch path on a small matrix there. If they differ, or anything in Triton fails, the
kernels over clients or those over tasks are off for the rest of the process, and one `RuntimeWarning` says why.
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
        off: Why kernels are off, by kind: `clients`, or `tasks`.
        checked: Where they equal the torch path: device, kind, and how many rows they are made for.
        checking: Whether a comparison is under way, in which torch does not ask for kernels.
    """

    off: dict[str, str] = field(default_factory=dict)
    checked: set[tuple[torch.device, str, int]] = field(default_factory=set)
    checking: bool = False


STATE = State()


def usable(rows: torch.Tensor) -> bool:
    """Returns whether the kernels run on rows `[N, D]`: float32 on a GPU, columns side by side, N <= 64, checked."""
    count, size = rows.shape
    fits = rows.is_cuda and rows.dtype == torch.float32 and rows.stride(1) == 1 and 0 < count <= LIMIT and size > 0
    return fits and ready(rows, "clients", count)


def ready(like: torch.Tensor, kind: str, count: int) -> bool:
    """Returns whether kernels of a kind are on and equal the torch path where a tensor is; compares at first use."""
    if kind in STATE.off or STATE.checking or os.environ.get(ENVIRONMENT) == "off":
        return False
    key = like.device, kind, count
    if key not in STATE.checked and importlib.util.find_spec("triton") is not None:
        STATE.checking = True
        try:
            if guarded(kind, like, lambda: _check(*key)):
                STATE.checked.add(key)
        finally:
            STATE.checking = False
    return key in STATE.checked


def statistics(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Runs `launch.statistics`, or returns None."""
    if not usable(rows):
        return None
    from fcilbench.vectors.kernels import launch

    return guarded("clients", rows, lambda: launch.statistics(rows))


def gram(rows: torch.Tensor, mean: torch.Tensor, reach: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Runs `launch.gram`, or returns None."""
    if not usable(rows):
        return None
    from fcilbench.vectors.kernels import launch

    return guarded("clients", rows, lambda: launch.gram(rows, mean, reach))


def merge(
    weights: torch.Tensor, rows: torch.Tensor, mean: torch.Tensor, reach: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Runs `launch.merge`, or returns None."""
    if not usable(rows):
        return None
    from fcilbench.vectors.kernels import launch

    return guarded("clients", rows, lambda: launch.merge(weights, rows, mean, reach))


def _check(device: torch.device, kind: str, count: int) -> bool:
    # Importing them imports Triton, which may fail.
    if kind == "clients":
        from fcilbench.vectors.kernels.check import check
    else:
        from fcilbench.vectors.kernels.check_tasks import check
    check(device, count)
    return True


def guarded(kind: str, like: torch.Tensor, call: Callable[[], T]) -> T | None:
    """Calls on a tensor's device. On an exception the kernels of this kind are off, and the result is None."""
    try:
        with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            return call()
    except torch.OutOfMemoryError:
        raise  # The torch path would not fit either; the engine has an answer to this one.
    except Exception as error:
        message = str(error).strip() or "no message"
        reason = STATE.off[kind] = f"{type(error).__name__}: {message.splitlines()[0]}"
        said = f"SUM runs in plain torch over {kind}, its Triton kernels are off: {reason}"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
        return None
