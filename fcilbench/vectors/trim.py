"""Z-score trimming of update vectors (spatial SUM: Kim and Do 2026, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fcilbench.vectors.chunks import Piece, columns, spans


class Trimmed:
    """Rows `[N, D]` in which outliers read as zero; the trimmed matrix itself never exists.

    An entry is an outlier if it lies more than `threshold` population standard deviations from its row's mean, both
    taken over the whole row, or over each of its segments. Making one costs a pass over the rows, for the statistics.

    Args:
        rows: `[N, D]`; left unchanged.
        threshold: z_thr > 0; `None` trims nothing.
        segments: Lengths of the consecutive segments with statistics of their own; by default the row is one.
        step: Columns in a piece; by default what fits the device.

    Attributes:
        zeroed: Entries that the last whole pass set to zero, int64 `[]`.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        threshold: float | None,
        segments: Sequence[int] | None = None,
        step: int | None = None,
    ) -> None:
        if threshold is not None and threshold <= 0:
            raise ValueError(f"z_thr must be > 0, got {threshold}")
        self._rows, self._segments = rows, (rows.shape[1],) if segments is None else tuple(segments)
        if sum(self._segments) != rows.shape[1]:
            raise ValueError(f"segments of {sum(self._segments)} entries in all do not fit rows of {rows.shape[1]}")
        self._step = step or columns(rows.shape[0], rows.device)
        self.zeroed = torch.zeros((), dtype=torch.int64, device=rows.device)
        self._bounds: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        if threshold is not None:
            found = [mean_and_sigma(self._rows, list(part)) for part in self._parts()]
            self._bounds = [_bounds(mean, sigma, threshold, rows.dtype) for mean, sigma in found]

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""
        return self._rows.shape[0], self._rows.shape[1]

    @property
    def like(self) -> torch.Tensor:
        """The rows that are read."""
        return self._rows

    def pieces(self) -> Iterator[Piece]:
        """Iterates over the trimmed rows from left to right; a piece is valid until the next one."""
        zeroed, buffer = torch.zeros_like(self.zeroed), torch.empty(0).to(self._rows)
        for index, part in enumerate(self._parts()):
            for span in part:
                piece = self._rows[:, span]
                if self._bounds is not None:
                    mean, reach = self._bounds[index]
                    buffer = torch.empty_like(piece) if buffer.shape != piece.shape else buffer
                    inside = torch.sub(piece, mean, out=buffer).abs_().le_(reach)  # 1: the entry stays, 0: it goes
                    zeroed += piece.numel() - inside.sum(dim=1, dtype=torch.float64).to(torch.int64).sum()
                    piece = inside.mul_(piece)
                yield span, piece
        self.zeroed = zeroed

    def dense(self) -> torch.Tensor:
        """Returns the trimmed rows as a whole, `[N, D]`."""
        return torch.cat([piece.clone() for _, piece in self.pieces()], dim=1)

    def _parts(self) -> Iterator[Iterator[slice]]:
        """Iterates over the segments, each as the spans of its pieces."""
        start = 0
        for size in self._segments:
            yield spans(size, self._step, start)
            start += size


def _bounds(
    mean: torch.Tensor, sigma: torch.Tensor, threshold: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each row's mean, and how far from it an entry may lie, both `[N, 1]`."""
    # A constant row has a sigma of rounding errors at most.
    spread = sigma > 4 * torch.finfo(dtype).eps * mean.abs()
    reach = torch.where(spread, threshold * sigma, torch.inf)
    return mean.to(dtype)[:, None], reach.to(dtype)[:, None]


def mean_and_sigma(rows: torch.Tensor, part: Sequence[slice]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and population standard deviation of each row over some columns, float64 `[N]`, in one pass.

    Pieces are centred on their own means and joined by Chan's formula, so a large mean costs no digits.
    """
    count = 0
    mean = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    squares = torch.zeros_like(mean)
    for span in part:
        piece = rows[:, span]
        size = piece.shape[1]
        own = piece.mean(dim=1, keepdim=True)
        centred = piece - own
        shift = own[:, 0].to(torch.float64) - mean
        squares += torch.linalg.vector_norm(centred, dim=1).to(torch.float64) ** 2
        squares += shift**2 * (count * size / (count + size))
        mean += shift * (size / (count + size))
        count += size
    return mean, (squares / max(count, 1)).sqrt()
