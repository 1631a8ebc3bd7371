"""The k largest magnitudes of a vector, exactly, in passes over pieces: no sort, no second vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch

from fcilbench.vectors.chunks import columns, spans


@dataclass(frozen=True)
class Cut:
    """Which entries are kept: those above a magnitude, and of those equal to it the ones up to an index.

    Attributes:
        magnitude: Bit pattern of the float32 magnitude of the smallest entry kept; -1 keeps everything.
        last: Index of the last kept entry of exactly this magnitude.
    """

    magnitude: int
    last: int

    def keeps(self, piece: torch.Tensor, start: int) -> torch.Tensor:
        """Returns which entries of a piece `[c]` that begins at index `start` are kept, bool `[c]`."""
        bits = _bits(piece)
        keep = bits > self.magnitude
        ties = bits == self.magnitude
        ties[max(self.last + 1 - start, 0) :] = False
        return keep.logical_or_(ties)


def count_of(fraction: float, size: int) -> int:
    """Returns `max(1, floor(fraction * size))`, with the fraction read as a decimal.

    Example:
        >>> count_of(0.29, 100), int(0.29 * 100)
        (29, 28)
    """
    return max(1, math.floor(Fraction(repr(fraction)) * size))


def cut(vector: torch.Tensor, fraction: float) -> Cut:
    """Finds the `count_of(fraction, D)` entries of largest magnitude; among equal ones the lower index is kept.

    Bit patterns of non-negative floats are in the order of their values, so two histograms, of the upper 15 and of
    the lower 16 bits, give the exact threshold.

    Args:
        vector: float32 `[D]`.
        fraction: In (0, 1].
    """
    size = vector.numel()
    wanted = count_of(fraction, size)
    if wanted >= size:
        return Cut(-1, size)
    upper = _histogram(vector, None)
    high, above = _bin(upper, wanted)
    lower = _histogram(vector, high)
    low, above_low = _bin(lower, wanted - above)
    magnitude = (high << 16) | low
    return Cut(magnitude, _nth_tie(vector, magnitude, wanted - above - above_low))


def top_k(vector: torch.Tensor, fraction: float) -> torch.Tensor:
    """Returns the vector with all but its `count_of(fraction, D)` largest entries set to zero, `[D]`."""
    return torch.where(cut(vector, fraction).keeps(vector, 0), vector, 0.0)


def _bits(piece: torch.Tensor) -> torch.Tensor:
    """Returns the bit patterns of the magnitudes, int32 `[c]`."""
    return piece.contiguous().view(torch.int32) & 0x7FFFFFFF


def _histogram(vector: torch.Tensor, high: int | None) -> torch.Tensor:
    """Counts the upper 15 bits, or the lower 16 of the entries whose upper ones are `high`; int64, on the CPU."""
    bins = 1 << 15 if high is None else 1 << 16
    total = torch.zeros(bins, dtype=torch.int64, device=vector.device)
    for span in spans(vector.numel(), columns(1, vector.device)):
        bits = _bits(vector[span])
        values = bits >> 16 if high is None else bits[bits >> 16 == high] & 0xFFFF
        total += torch.bincount(values, minlength=bins)
    return total.cpu()


def _bin(histogram: torch.Tensor, wanted: int) -> tuple[int, int]:
    """Returns the bin of the `wanted`-th largest entry, and how many entries are in the bins above it."""
    at_least = histogram.flip(0).cumsum(0).flip(0)
    found = int((at_least >= wanted).nonzero()[-1])
    return found, int(at_least[found] - histogram[found])


def _nth_tie(vector: torch.Tensor, magnitude: int, wanted: int) -> int:
    """Returns the index of the `wanted`-th entry of exactly this magnitude."""
    for span in spans(vector.numel(), columns(1, vector.device)):
        ties = (_bits(vector[span]) == magnitude).nonzero()[:, 0]
        if len(ties) >= wanted:
            return int(ties[wanted - 1]) + int(span.start)
        wanted -= len(ties)
    raise AssertionError("fewer entries than counted")
