"""Streaming over D: every function on `[N, D]` works on pieces `[N, c]`, so that no second copy of the rows exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

Piece = tuple[slice, torch.Tensor]
"""Columns of the whole, and the values there, `[N, c]`."""

_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 25}
"""Numbers in a piece: on a CPU they stay in the cache between operations, a GPU wants few launches."""
_ALIGNED = 1 << 12
"""Pieces begin at multiples of this, which bitmaps and quantised blocks divide."""


class Rows(Protocol):
    """A matrix that is made piece by piece and never exists as a whole."""

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""

    @property
    def like(self) -> torch.Tensor:
        """A tensor of the rows' dtype and device."""

    def pieces(self) -> Iterator[Piece]:
        """Iterates over the columns from left to right; a piece is valid until the next one."""


def columns(rows: int, device: torch.device) -> int:
    """Returns how many columns a piece of so many rows has on a device."""
    count = _ELEMENTS.get(device.type, _ELEMENTS["cuda"]) // max(rows, 1)
    return max(_ALIGNED, count // _ALIGNED * _ALIGNED)


def spans(size: int, step: int, start: int = 0) -> Iterator[slice]:
    """Iterates over `start..start + size` in slices of at most `step`.

    Example:
        >>> list(spans(5, 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for left in range(start, start + size, step):
        yield slice(left, min(left + step, start + size))


def pieces(rows: torch.Tensor | Rows, step: int | None = None) -> Iterator[Piece]:
    """Iterates over a matrix from left to right.

    Args:
        rows: `[N, D]`.
        step: Columns in a piece of a tensor; by default what fits its device.
    """
    if not isinstance(rows, torch.Tensor):
        yield from rows.pieces()
        return
    for span in spans(rows.shape[1], step or columns(rows.shape[0], rows.device)):
        yield span, rows[:, span]
