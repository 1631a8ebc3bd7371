"""What makes the numbers of a cell equal on every x86-64 processor: the variables with which its worker starts.

torch, MKL, oneDNN, numpy, OpenBLAS and the C library choose their code by the processor, and codes that add up in
another order, or fuse a product with a sum, differ in the last bit. Training turns that into another accuracy. With
these variables they all take code of the oldest x86-64 processors that they support. They are read when a library is
loaded or, by the C library, when the process starts, so they are set for the worker process and not within it.

What is left are seven functions of MKL, which `fcilbench.engine.portable` replaces. `docs/portability.md` says what was
measured, and what remains out of reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PORTABLE: Mapping[str, str] = MappingProxyType(
    {
        "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels
        "MKL_CBWR": "COMPATIBLE",  # products of matrices and decompositions in torch
        "ONEDNN_MAX_CPU_ISA": "SSE41",  # convolutions and linear layers in torch
        # The C library's exp, log, sin and cos, and with them torch's normal random numbers in float64. The names with
        # `_Usable` are those of glibc up to 2.32; each version passes over the names of the other.
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F,-AVX2_Usable,-FMA_Usable,-FMA4_Usable",
        # numpy's kernels: the groups of numpy 2.4 and later, then the single features of earlier versions.
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR AVX F16C FMA3 AVX2 AVX512F AVX512CD "
        "AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL",
        "OPENBLAS_CORETYPE": "Nehalem",  # products and decompositions in numpy and scipy
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
)
"""Environment variables of a worker that trains cells with `runtime.portable`."""
