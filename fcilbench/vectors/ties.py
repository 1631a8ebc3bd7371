"""Trims vectors, elects a sign for each coordinate, and averages the entries that agree with it: TIES-Merging.

Yadav et al. 2023, "TIES-Merging: Resolving Interference When Merging Models". The vectors are clients' updates or task
vectors, as rows or as `fcilbench.vectors.module.store` encodes them. Steps go over them piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fcilbench.vectors.module import Basis, Cut, cut, read, stack
from fcilbench.vectors.sums import add_rows, columns, spans


def merge_signs(
    vectors: Basis, weights: Sequence[float], keep: float, *, size: int, device: torch.device
) -> torch.Tensor:
    """Returns the disjoint mean m `[size]` of trimmed vectors, float32.

    With tau_i trimmed to its `keep` fraction of largest magnitude, gamma_p = sign(sum_i w_i tau_ip), and where that sum
    is 0 the sign of sum_q gamma_q. Then m_p = sum_A w_i tau_ip / sum_A w_i over A = {i: tau_ip gamma_p > 0}, and 0
    where A is empty. Sums are float64: opposite entries of equal weight cancel exactly.

    Args:
        vectors: tau_1 .. tau_N of `size` float32 entries each.
        weights: w_1 .. w_N > 0; only their ratios count.
        keep: Fraction of each vector that is kept, in (0, 1].
        size: Number of entries.
        device: Where the vectors are.
    """
    merged, cuts = torch.zeros(size, dtype=torch.float32, device=device), _cuts(vectors, keep, size)
    balance = 0
    for _, pieces in _trimmed(vectors, cuts, size, device):
        balance += int(_weighted(weights, pieces).sign().sum())
    majority = float((balance > 0) - (balance < 0))
    for span, pieces in _trimmed(vectors, cuts, size, device):
        sign = _weighted(weights, pieces).sign()
        sign = torch.where(sign == 0, majority, sign)
        agree = pieces.sign() * sign > 0
        total = _weighted(weights, agree.to(torch.float64))
        chosen = _weighted(weights, torch.where(agree, pieces, 0.0))
        merged[span] = torch.where(total > 0, chosen / total, 0.0).to(torch.float32)
    return merged


def merge_plain(
    vectors: Basis, weights: Sequence[float], keep: float, *, size: int, device: torch.device
) -> torch.Tensor:
    """Returns sum_i w_i tau_i / sum_i w_i `[size]` of vectors that are trimmed alike: no election, so no disjoint mean.

    With `keep` 1 it is FedAvg to the last bit.
    """
    merged = torch.zeros(size, dtype=torch.float32, device=device)
    total = sum(weights)
    for span, pieces in _trimmed(vectors, _cuts(vectors, keep, size), size, device):
        add_rows(merged[span], [weight / total for weight in weights], pieces.to(torch.float32))
    return merged


def _cuts(vectors: Basis, keep: float, size: int) -> list[Cut]:
    return [cut(read(vector, slice(0, size)), keep) for vector in vectors]


def _trimmed(
    vectors: Basis, cuts: Sequence[Cut], size: int, device: torch.device
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yields the trimmed vectors piece by piece, float64 `[N, c]`."""
    for span in spans(size, columns(len(vectors), device)):
        pieces = stack(vectors, span)
        for piece, own in zip(pieces, cuts, strict=True):
            piece.mul_(own.keeps(piece, span.start))
        yield span, pieces.to(torch.float64)


def _weighted(weights: Sequence[float], pieces: torch.Tensor) -> torch.Tensor:
    """Returns sum_i w_i pieces_i `[c]`, added in order."""
    total = torch.zeros_like(pieces[0])
    add_rows(total, list(weights), pieces)
    return total
