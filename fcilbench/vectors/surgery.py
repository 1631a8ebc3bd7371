"""SUM over clients: trimming by z-score and projection surgery in closed form (Kim and Do 2026, section 4.2).

Surgery removes from each client's vector its components along all others (equation 5):
tau_hat_i = tau_i - sum_{j != i} (<tau_i, tau_j> / ||tau_j||^2) tau_j. Every refined vector is a combination of the
clients' own, tau_hat = A T, where A follows from the Gram matrix G = T T^T. So their sum is sum_j c_j tau_j with
c = A^T 1, their Gram matrix is A G A^T, and a round is three passes over the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch

from fcilbench.vectors.sums import add_rows, columns, spans

Target = Literal["both", "positive", "negative", "none"]


class Trimmed:
    """Client vectors `[N, D]` whose outliers are read as zero; the rows themselves do not change.

    An entry is an outlier if it lies more than `threshold` population standard deviations from its row's mean.

    Args:
        rows: `[N, D]`.
        threshold: z_thr > 0; `None` trims nothing.
        segments: Lengths of consecutive segments with statistics of their own; by default the row is one.
        step: Columns in a piece; by default what fits the device.

    Attributes:
        zeroed: Number of entries that the last whole pass set to zero, int64 `[]`.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        threshold: float | None,
        segments: Sequence[int] | None = None,
        step: int | None = None,
    ) -> None:
        self.rows, self._segments = rows, (rows.shape[1],) if segments is None else tuple(segments)
        self._step = step or columns(rows.shape[0], rows.device)
        self.zeroed = torch.zeros((), dtype=torch.int64, device=rows.device)
        self._bounds: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        if threshold is not None:
            self._bounds = [_bounds(rows, part, threshold) for part in self._parts()]

    def pieces(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Iterates over columns and trimmed values `[N, c]` from left to right; a piece is valid until the next one."""
        zeroed, buffer = torch.zeros_like(self.zeroed), torch.empty(0).to(self.rows)
        for index, part in enumerate(self._parts()):
            for span in part:
                piece = self.rows[:, span]
                if self._bounds is not None:
                    mean, reach = self._bounds[index]
                    buffer = torch.empty_like(piece) if buffer.shape != piece.shape else buffer
                    inside = torch.sub(piece, mean, out=buffer).abs_().le_(reach)  # 1: the entry stays, 0: it goes
                    zeroed += piece.numel() - inside.sum(dim=1, dtype=torch.float64).to(torch.int64).sum()
                    piece = inside.mul_(piece)
                yield span, piece
        self.zeroed = zeroed

    def _parts(self) -> Iterator[list[slice]]:
        """Iterates over the segments, each as the spans of its pieces."""
        start = 0
        for size in self._segments:
            yield list(spans(size, self._step, start))
            start += size


def _bounds(rows: torch.Tensor, part: Sequence[slice], threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each row's mean over some columns, and how far from it an entry may lie, both `[N, 1]`."""
    mean, sigma = mean_and_sigma(rows, part)
    # A constant row has a sigma of rounding errors at most.
    spread = sigma > 4 * torch.finfo(rows.dtype).eps * mean.abs()
    reach = torch.where(spread, threshold * sigma, torch.inf)
    return mean.to(rows.dtype)[:, None], reach.to(rows.dtype)[:, None]


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


def gram(vectors: Trimmed) -> torch.Tensor:
    """Returns the Gram matrix T T^T of trimmed vectors, float64 `[N, N]`, in one pass accumulated in float64."""
    count = vectors.rows.shape[0]
    total = vectors.rows.new_zeros(count, count, dtype=torch.float64)
    wide = vectors.rows.new_empty(0, dtype=torch.float64)
    for _, piece in vectors.pieces():
        wide = wide if wide.shape == piece.shape else torch.empty_like(piece, dtype=torch.float64)
        wide.copy_(piece)
        total.addmm_(wide, wide.T)
    return total


def surgery_matrix(gram_: torch.Tensor, target: Target = "both", limit: int | None = None) -> torch.Tensor:
    """Returns A `[N, N]` with `tau_hat_i = sum_j A_ij tau_j` (equation 5). A zero tau_j projects nothing.

    `target` are the pairs that are projected: every pair, those with G_ij > 0 or < 0, or none. With a `limit` each
    vector is projected on at most that many others, those with the largest |cosine|; ties by index.
    """
    norms = gram_.diagonal()
    ratio = torch.where(norms > 0, gram_ / norms.clamp(min=torch.finfo(gram_.dtype).tiny), 0.0)
    chosen = {
        "both": torch.ones_like(gram_, dtype=torch.bool),
        "positive": gram_ > 0,
        "negative": gram_ < 0,
        "none": torch.zeros_like(gram_, dtype=torch.bool),
    }[target]
    identity = torch.eye(len(gram_), dtype=gram_.dtype, device=gram_.device)
    chosen &= identity == 0
    if limit is not None:
        closeness = torch.where(chosen, cosines(gram_).abs(), -1.0)
        order = closeness.argsort(dim=1, descending=True, stable=True)
        chosen &= torch.zeros_like(chosen).scatter(1, order[:, :limit], torch.ones_like(chosen))
    return identity - ratio * chosen


def coefficients(matrix: torch.Tensor) -> torch.Tensor:
    """Returns c `[N]` with `sum_i tau_hat_i = sum_j c_j tau_j`, from the surgery matrix A."""
    return matrix.sum(dim=0)


def merge(weights: torch.Tensor, vectors: Trimmed) -> tuple[torch.Tensor, float]:
    """Returns `sum_j weights_j tau_j` `[D]`, each coordinate added in row order, and its sign-flip ratio, in one pass.

    The ratio is the share of the D coordinates in which the merge and `sum_j tau_j` are both non-zero and differ in
    sign. The weights `[N]` are the coefficients times lambda_S.
    """
    total = vectors.rows.new_zeros(vectors.rows.shape[1])
    factors = weights.tolist()
    flips = torch.zeros((), dtype=torch.int64, device=total.device)
    for span, piece in vectors.pieces():
        out = total[span]
        add_rows(out, factors, piece)
        flips += (out.sign() * piece.sum(dim=0).sign() < 0).sum()
    return total, int(flips) / max(len(total), 1)


def cosines(gram_: torch.Tensor) -> torch.Tensor:
    """Returns all pairwise cosines of vectors with Gram matrix `gram_`, `[N, N]`; 0 beside a zero vector."""
    norms = gram_.diagonal().clamp(min=0).sqrt()
    scale = norms[:, None] * norms[None, :]
    return torch.where(scale > 0, gram_ / scale.clamp(min=torch.finfo(gram_.dtype).tiny), 0.0)


def mean_pairwise_cosine(gram_: torch.Tensor) -> float:
    """Returns the mean cosine over pairs i < j; pairs with a zero vector count as 0, fewer than two vectors give 0."""
    count = len(gram_)
    return float(cosines(gram_).triu(1).sum()) / (count * (count - 1) / 2) if count > 1 else 0.0


def step_cosine(weights: torch.Tensor, gram_: torch.Tensor) -> float:
    """Returns the cosine between `sum_j weights_j tau_j` and `sum_j tau_j`; 0 if one of them is zero.

    If it is negative, the step goes against the clients' mean update.
    """
    pair = torch.stack([weights, torch.ones_like(weights)])
    products = pair @ gram_ @ pair.T
    largest = (pair.abs() @ gram_.diagonal().clamp(min=0).sqrt()) ** 2
    if bool((products.diagonal() <= 1e-12 * largest).any()):  # one of them cancels out: its direction is rounding
        return 0.0
    return float(cosines(products)[0, 1])
