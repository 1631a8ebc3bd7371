"""Compares the kernels with the torch path on a small matrix, once for a device and a number of rows."""

from __future__ import annotations

import torch

from fcilbench.vectors.kernels import launch
from fcilbench.vectors.surgery import gram, merge
from fcilbench.vectors.trim import Trimmed, mean_and_sigma

_SIZE = 100_003
"""Columns: many programs, several blocks in each, and a last block that is not full."""
_THRESHOLD = 3.0
_DIGITS = 1e-9
"""Relative difference of statistics that two orders of float64 additions may have."""


class MismatchError(RuntimeError):
    """A kernel and plain torch differ; the message says which."""


def check(device: torch.device, count: int) -> None:
    """Runs the three passes both ways on integers, whose products and sums are exact in either order.

    The entries have up to 15 bits, more than any reduced precision keeps. They are columns of a wider matrix, as a
    client's backbone is.

    Args:
        device: Where.
        count: N.

    Raises:
        MismatchError: If a result differs.
    """
    generator = torch.Generator(device).manual_seed(count)
    rows = integers(1 << 11, count, _SIZE + 5, generator)[:, 3:-2]
    rows[:, ::97] *= 16.0  # outliers
    weights = integers(4, 1, count, generator)[0]
    vectors = Trimmed(rows, _THRESHOLD, fused=False)
    wide = mean_and_sigma(rows.to(torch.float64), [slice(0, _SIZE)])
    for name, ours, theirs in zip(("mean", "sigma"), launch.statistics(rows), wide, strict=True):
        if not bool(((ours - theirs).abs() <= _DIGITS * wide[1]).all()):
            raise MismatchError(f"the kernel's {name} differs from torch's on {device} at N = {count}")
    products, zeroed = launch.gram(rows, *vectors.bounds)
    expect("Gram matrix", products, gram(vectors), device)
    expect("count of trimmed entries (Gram matrix)", zeroed, vectors.zeroed, device)
    merged, turned, zeroed = launch.merge(weights, rows, *vectors.bounds)
    expected, flips = merge(weights, vectors)
    expect("merge", merged, expected, device)
    expect("sign flips", turned, turned.new_tensor(round(flips * _SIZE)), device)
    expect("count of trimmed entries (merge)", zeroed, vectors.zeroed, device)


def integers(most: int, count: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Returns integers in (-most, most) as float32 `[count, size]`."""
    shape, device = (count, size), generator.device
    return torch.randint(1 - most, most, shape, generator=generator, device=device).to(torch.float32)


def expect(name: str, ours: torch.Tensor, theirs: torch.Tensor, device: torch.device) -> None:
    """Raises `MismatchError` unless both results are equal in every bit."""
    if not torch.equal(ours, theirs):
        raise MismatchError(f"the kernel's {name} differs from torch's on {device}")
