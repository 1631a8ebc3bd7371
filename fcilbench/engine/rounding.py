"""How the libraries of this process round: a digest of a few sums, computed and not declared.

Which code a library takes for a processor is decided in many places: by its own list of processors, by variables such
as `MKL_CBWR`, by another library that is loaded before it. Names and versions do not tell. Two processes that add up in
another order differ in the last bits of a long sum, so the bits themselves tell them apart.
"""

from __future__ import annotations

import functools
import hashlib
import math

import torch
from torch.nn import functional

_ROWS, _TERMS, _COLUMNS = 64, 301, 48
"""Sums of 301 terms: long enough that sixteen, eight or four at a time give other bits, and no multiple of them."""


@functools.cache
def rounding() -> str:
    """Returns twelve hexadecimal digits that differ where torch adds up on a CPU in another order.

    They are a digest of products of matrices (float32 and float64), a convolution, sums, softmax and layer
    normalisation, computed by one thread. Equal digits do not prove that every function is rounded alike; other digits
    prove that some are not.
    """
    digest = hashlib.sha256()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for result in _results():
                digest.update(result.numpy().tobytes())
    finally:
        torch.set_num_threads(threads)
    return digest.hexdigest()[:12]


def _results() -> list[torch.Tensor]:
    left, right = _numbers(_ROWS, _TERMS), _numbers(_TERMS, _COLUMNS)
    images, kernels = _numbers(2, 7, 16, 16), _numbers(5, 7, 3, 3)
    return [
        left.float() @ right.float(),
        left @ right,
        functional.conv2d(images.float(), kernels.float()),
        left.float().sum(dim=1),
        left.float().softmax(dim=1),
        functional.layer_norm(left.float(), [_TERMS]),
    ]


def _numbers(*shape: int) -> torch.Tensor:
    """Returns float64 numbers between -4 and 4, most of them rounded, so that their sums depend on the order."""
    whole = (torch.arange(math.prod(shape)) * 7919) % 1009 - 504
    return (whole.double() / 126).reshape(shape)
