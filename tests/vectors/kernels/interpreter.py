"""What both scripts that run kernels in Triton's interpreter share; to be imported before Triton is."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton.runtime import interpreter

SMALL = {"THREADS": 32, "COLUMNS": 2, "BLOCK": 64, "LANES": 32, "ITERATIONS": 2, "PROGRAMS": 8, "SUMS": 4}
"""Of these a few hundred columns fill several programs with several steps each, and leave a rest."""


class OnGpu(torch.Tensor):
    """A CPU tensor that says it is on a GPU."""

    is_cuda = True


def fused(_, x, y, z):
    """A multiply-add that rounds once, as hardware does: the interpreter's own rounds float32 twice."""
    wide = x.data.astype(np.float64) * y.data + z.data
    return interpreter.TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)


interpreter.InterpreterBuilder.create_fma = fused
