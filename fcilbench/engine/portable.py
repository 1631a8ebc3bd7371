"""The rest of portable numbers: the functions of torch that choose their code by the processor whatever is asked.

The variables of `fcilbench.worker.portable` reach all of torch but seven functions of MKL's vector mathematics: it
computes them from the processor's approximate reciprocals, or by code for Intel's processors alone. Here numpy computes
them: its square root is the processor's exact one, and the others come from the C library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fcilbench.errors import PrerequisiteError

REPLACED: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "log": np.log,
    "log10": np.log10,
}
"""The replaced functions of torch, by name. `x ** 0.5` does not come here: a plugin writes `x.sqrt()`."""


@functools.cache  # an operator's kernel stays replaced as long as the process lives
def make_portable(device: str = "cpu") -> object:
    """Makes this process compute on a CPU what every x86-64 processor computes; returns what keeps it so.

    Raises:
        PrerequisiteError: If the device is no CPU, or the process was not started with
            `fcilbench.worker.portable.PORTABLE`.
    """
    if device != "cpu":
        raise PrerequisiteError("runtime.portable: portable numbers are computed on a CPU", hint="add --gpus none")
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "DEFAULT":
        raise PrerequisiteError(
            f"runtime.portable: this worker computes with {capability}, since it was not started for portable numbers",
            hint="an executor hands `job_environment(...)` of its job to the worker process",
        )
    torch.backends.nnpack.set_flags(False)  # type: ignore[no-untyped-call]
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, function in REPLACED.items():
        plain, out, in_place = _kernels(function)
        library.impl(name, plain, "CPU")
        library.impl(f"{name}.out", out, "CPU")
        library.impl(f"{name}_", in_place, "CPU")
    return library


def _kernels(function: Callable[[Any], Any]) -> tuple[Callable[..., torch.Tensor], ...]:
    """Returns a function of numpy as an operator of torch: a new tensor, one given as `out`, and in place."""

    def out(tensor: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        # As in torch, 16-bit numbers are computed in float32.
        wide = out.dtype if out.dtype in (torch.float32, torch.float64) or out.is_complex() else torch.float32
        with np.errstate(all="ignore"):  # NaN is an answer, not a warning
            found = np.asarray(function(tensor.detach().to(wide).contiguous().numpy()))
        return out.resize_(tensor.shape).copy_(torch.from_numpy(found))

    def plain(tensor: torch.Tensor) -> torch.Tensor:
        number = tensor.is_floating_point() or tensor.is_complex()
        result = torch.empty_like(tensor, dtype=None if number else torch.get_default_dtype())
        return out(tensor, out=result)

    def in_place(tensor: torch.Tensor) -> torch.Tensor:
        return out(tensor, out=tensor)

    return plain, out, in_place
