"""SUM over tasks: the orthogonal basis of task vectors, and the module that is deployed from it.

Kim and Do 2026, sections 4.3 and 4.4. At the end of task k its vector tau_k = theta_G^(k) - theta_pre joins a basis,
tau_hat_k = tau_k - sum_{j<k} (<tau_k, tau_hat_j> / ||tau_hat_j||^2) tau_hat_j (equation 9): `project_out`. The basis is
kept as `store` encodes it. Each tau_hat_k keeps its largest entries (`cut`), and tau_uni is elected from these
(`unify`). Task k deploys theta_pre + s_k m_k * tau_uni with m_k = [tau_k * tau_uni > 0] and s_k = ||tau_k||_1 /
(||m_k * tau_uni||_1 + eps): `Modulators`, and `Packed` as a file. Steps go over the basis piece by piece: it is never
decoded as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import torch

from fcilbench.vectors.sums import columns, spans

Kind = Literal["fp32", "fp16", "int8", "topk"]
Rule = Literal["count", "mass", "strict", "off"]
MaskFrom = Literal["accumulated", "refined"]
Stored = torch.Tensor | dict[str, Any]
"""A vector `[D]` as the server keeps it: itself, or a dict of tensors and numbers."""
Basis = Sequence[Stored]
"""tau_hat_1 .. tau_hat_T."""

BLOCK = 256
"""Entries that share one scale in int8."""
_NOTHING = 1e-6
"""A vector whose refined part is at most this share of it lies in the span of the basis: the rest is rounding."""
_EPS = 1e-12

# ---------------------------------------------------------------- temporal surgery


def project_out(vector: torch.Tensor, basis: Basis, limit: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Removes from a task vector its components along the earlier, mutually orthogonal basis vectors (equation 9).

    Gram-Schmidt without normalisation, run twice against rounding, inner products in float64; zero basis vectors are
    skipped. A vector that lies in their span becomes exactly 0, not rounding noise: such a task has no vote in the
    election. With a `limit` it projects on at most that many of them, those with the largest |cosine|; ties by index.

    Returns:
        tau_hat_k `[D]` and the coefficients r float64 `[k-1]` with `tau_k = tau_hat_k + sum_j r_j tau_hat_j`, so that
        tau_k need not be stored.
    """
    kept = torch.zeros(len(basis), dtype=torch.float64, device=vector.device)
    if not len(basis) or limit == 0:
        return vector.clone(), kept
    inner, norms = products(vector, basis)
    closeness = torch.where(norms > 0, inner.abs() / norms.clamp(min=1e-300).sqrt(), -1.0)
    used = torch.zeros_like(norms, dtype=torch.bool)
    used[closeness.argsort(descending=True, stable=True)[:limit]] = True
    used &= norms > 0
    refined = vector
    for run in range(2):
        step = torch.where(used, (inner if run == 0 else products(refined, basis)[0]) / norms.clamp(min=1e-300), 0.0)
        before, refined, kept = refined, torch.empty_like(vector), kept + step
        for span in _spans(basis, vector.device):
            refined[span] = before[span].to(torch.float64) - step @ stack(basis, span).to(torch.float64)
    if torch.linalg.vector_norm(refined) <= _NOTHING * torch.linalg.vector_norm(vector):
        refined = torch.zeros_like(vector)
    return refined, kept


def products(vector: torch.Tensor, basis: Basis) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `<vector, tau_hat_j>` and `||tau_hat_j||^2` for each j, float64 `[T]`, in one pass."""
    inner, norms = torch.zeros(2, len(basis), dtype=torch.float64, device=vector.device)
    for span in _spans(basis, vector.device):
        wide = stack(basis, span).to(torch.float64)
        inner += wide @ vector[span].to(torch.float64)
        norms += wide.square_().sum(dim=1)
    return inner, norms


def accumulated(pieces: torch.Tensor, index: int, coefficients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns tau_index on the columns of `pieces` (tau_hat_1 .., `[>= index + 1, c]`): undoes `project_out`."""
    vector = pieces[index].clone()
    for coefficient, direction in zip(coefficients[index].tolist(), pieces[:index], strict=True):
        vector.add_(direction, alpha=coefficient)
    return vector


def _spans(basis: Basis, device: torch.device) -> Iterator[slice]:
    first = basis[0]
    size = first.numel() if isinstance(first, torch.Tensor) else int(first["size"])
    return spans(size, columns(len(basis), device))


# ---------------------------------------------------------------- storage


def store(vector: torch.Tensor, kind: Kind = "fp32", keep: float = 0.1) -> Stored:
    """Encodes a float32 vector `[D]` for the server's memory; `topk` is from the paper's appendix, the others are ours.

    `fp16` is scaled by a power of two: entries down to 2^-29 of the largest keep 11 bits. `int8` has one absmax scale
    for each block of 256. `topk` keeps the fraction `keep` of largest entries as index and fp32 value.
    """
    size = vector.numel()
    if kind == "fp32":
        return vector
    if kind == "fp16":
        values, exponent = to_half(vector)
        return {"kind": kind, "size": size, "values": values, "exponent": exponent}
    if kind == "int8":
        values = torch.empty(size, dtype=torch.int8, device=vector.device)
        scales = []
        for span in spans(size, columns(1, vector.device)):
            blocks = torch.nn.functional.pad(vector[span], (0, (span.start - span.stop) % BLOCK)).view(-1, BLOCK)
            scales.append(blocks.abs().amax(dim=1) / 127.0)
            steps = (blocks / torch.where(scales[-1] > 0, scales[-1], 1.0)[:, None]).round_()
            values[span] = steps.to(torch.int8).flatten()[: span.stop - span.start]
        return {"kind": kind, "size": size, "values": values, "scales": torch.cat(scales)}
    chosen = cut(vector, keep)
    parts = spans(size, columns(1, vector.device))
    found = [chosen.keeps(vector[span], span.start).nonzero()[:, 0] + span.start for span in parts]
    index = torch.cat(found).to(torch.int32 if size < 2**31 else torch.int64)
    return {"kind": kind, "size": size, "index": index, "values": vector[index]}


def read(stored: Stored, part: slice) -> torch.Tensor:
    """Decodes the entries of `part`, a slice with both ends, float32 `[part.stop - part.start]`."""
    if isinstance(stored, torch.Tensor):
        return stored[part]
    values: torch.Tensor = stored["values"]
    if stored["kind"] == "fp16":
        return from_half(values[part], stored["exponent"])
    if stored["kind"] == "int8":
        first, last = part.start // BLOCK, -(-part.stop // BLOCK)
        scales: torch.Tensor = stored["scales"][first:last].repeat_interleave(BLOCK)
        return values[part].to(torch.float32) * scales[part.start - first * BLOCK : part.stop - first * BLOCK]
    ends = torch.tensor([part.start, part.stop], device=values.device, dtype=stored["index"].dtype)
    left, right = torch.searchsorted(stored["index"], ends).tolist()
    out = values.new_zeros(part.stop - part.start)
    out[stored["index"][left:right].to(torch.int64) - part.start] = values[left:right]
    return out


def stack(vectors: Basis, part: slice) -> torch.Tensor:
    """Decodes the same entries of several vectors, float32 `[T, part.stop - part.start]`."""
    return torch.stack([read(vector, part) for vector in vectors])


def to_half(vector: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns `vector * 2^-exponent` in fp16, and the exponent that puts its largest entry into (2^14, 2^15]."""
    largest = float(vector.abs().max()) if vector.numel() else 0.0
    exponent = max(math.ceil(math.log2(largest)) - 15, -126) if largest > 0 else 0
    return (vector * 2.0**-exponent).to(torch.float16), exponent


def from_half(values: torch.Tensor, exponent: int) -> torch.Tensor:
    """Returns `values * 2^exponent`, float32: the inverse of `to_half` up to the rounding to fp16."""
    return values.to(torch.float32) * 2.0**exponent


# ---------------------------------------------------------------- sparsification


@dataclass(frozen=True)
class Cut:
    """Keeps the entries above a magnitude (a bit pattern of float32; -1: all), and equal ones up to an index."""

    magnitude: int
    last: int

    def keeps(self, piece: torch.Tensor, start: int) -> torch.Tensor:
        """Returns which entries of a piece `[c]` that begins at index `start` are kept, bool `[c]`."""
        bits = piece.contiguous().view(torch.int32) & 0x7FFFFFFF  # of the magnitudes
        ties = bits == self.magnitude
        ties[max(self.last + 1 - start, 0) :] = False
        return (bits > self.magnitude).logical_or_(ties)


def count_of(fraction: float, size: int) -> int:
    """Returns `max(1, floor(fraction * size))`, the fraction read as a decimal: 0.29 of 100 is 29, not int(28.99..)."""
    return max(1, math.floor(Fraction(repr(fraction)) * size))


def cut(vector: torch.Tensor, fraction: float) -> Cut:
    """Finds the `count_of(fraction, D)` entries of largest magnitude of a float32 vector `[D]`; ties by index."""
    size = vector.numel()
    wanted = count_of(fraction, size)
    if wanted >= size:
        return Cut(-1, size)
    magnitudes = vector.abs()
    threshold = magnitudes.topk(wanted, sorted=False).values.min()
    ties = (magnitudes == threshold).nonzero()[:, 0]
    above = int((magnitudes > threshold).sum())
    return Cut(int(threshold.view(torch.int32)), int(ties[wanted - above - 1]))


# ---------------------------------------------------------------- election, masks and scales


def elect(vectors: torch.Tensor, rule: Rule = "count") -> torch.Tensor:
    """Returns per coordinate the elected sign with the largest magnitude that agrees with it.

    Sparsified basis vectors are `[T, c]`. `count` elects the sign that more non-zero entries have, a tie gives 0;
    `mass` the sign of their sum (EMR-Merging, Huang et al. 2024); `strict` the sign that all non-zero entries share,
    any disagreement gives 0; `off` is the plain sum. The paper names both a majority sign and zero wherever tasks
    disagree.
    """
    if rule == "off":
        return vectors.sum(dim=0, dtype=torch.float64).to(vectors.dtype)
    largest, smallest = vectors.amax(dim=0).clamp_(min=0), vectors.amin(dim=0).clamp_(max=0)
    if rule == "mass":
        sign = vectors.sum(dim=0, dtype=torch.float64).sign()
    elif rule == "strict":
        sign = largest.sign() + smallest.sign()
    else:
        sign = vectors.sign().sum(dim=0)
    return torch.where(sign > 0, largest, torch.where(sign < 0, smallest, 0.0))


def unify(basis: Basis, cuts: Sequence[Cut] | None, rule: Rule, device: torch.device) -> torch.Tensor:
    """Returns tau_uni `[D]`: the basis, each vector sparsified by its cut (`None`: kept whole), then elected."""
    unified = []
    for span in _spans(basis, device):
        pieces = stack(basis, span)
        for piece, own in zip(pieces, cuts or (), strict=cuts is not None):
            piece.mul_(own.keeps(piece, span.start))
        unified.append(elect(pieces, rule))
    return torch.cat(unified)


@dataclass(frozen=True)
class Modulators:
    """Masks and scales of the tasks 1..T under one tau_uni.

    Attributes:
        basis: tau_hat_1 .. tau_hat_T as they are stored; a lossy storage changes the masks.
        coefficients: What `project_out` returned for each.
        sizes: L1 norm of each task's vector (`source`) before it was stored.
        unified: tau_uni, `[D]`.
        source: The vector of a task that gives its mask and scale: tau_k (`accumulated`) or tau_hat_k (`refined`);
            `None`: no masks and scale 1.
    """

    basis: Basis
    coefficients: Sequence[torch.Tensor]
    sizes: Sequence[float]
    unified: torch.Tensor
    source: MaskFrom | None = "accumulated"

    def masks(self, index: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """Iterates over the pieces of m_index, bool."""
        for span in _spans(self.basis, self.unified.device):
            yield span, self._mask(stack(self.basis[: index + 1], span), index, self.unified[span])

    def scales(self) -> torch.Tensor:
        """Returns s_k = ||tau_k||_1 / (||m_k * tau_uni||_1 + eps) of each task, float32 `[T]`; 0 for an empty mask."""
        if self.source is None:
            return torch.ones(len(self.basis), device=self.unified.device)
        agreed = torch.zeros(len(self.basis), dtype=torch.float64, device=self.unified.device)
        for span in _spans(self.basis, self.unified.device):
            pieces, unified = stack(self.basis, span), self.unified[span]
            for index in range(len(self.basis)):
                agreed[index] += (unified.abs() * self._mask(pieces, index, unified)).sum(dtype=torch.float64)
        sizes = torch.tensor(self.sizes, dtype=torch.float64, device=agreed.device)
        return torch.where(agreed > 0, sizes / (agreed + _EPS), 0.0).to(torch.float32)

    def deployed(self, index: int, scale: float) -> torch.Tensor:
        """Returns the deployed task vector m_index * s_index * tau_uni, `[D]`."""
        return torch.cat([restore(self.unified[span], own, scale) for span, own in self.masks(index)])

    def _mask(self, pieces: torch.Tensor, index: int, unified: torch.Tensor) -> torch.Tensor:
        """Returns [task * unified > 0] on some columns, bool `[c]`."""
        if self.source is None:
            return torch.ones_like(unified, dtype=torch.bool)
        task = pieces[index] if self.source == "refined" else accumulated(pieces, index, self.coefficients)
        # Signs instead of the product, which underflows where both entries are tiny.
        return (task.sign() * unified.sign()) > 0


def restore(unified: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns `mask * scale * unified`."""
    return torch.where(mask, unified * scale, 0.0)


# ---------------------------------------------------------------- packing


@dataclass(frozen=True)
class Packed:
    """The module of T tasks in few bytes; tau_uni is rounded to fp16.

    Attributes:
        support: Bitmap of tau_uni's non-zero entries, uint8 `[ceil(D / 8)]`.
        values: tau_uni there times 2^-exponent, fp16 `[S]`.
        masks: For each task a bitmap over the support, uint8 `[T, ceil(S / 8)]`.
        scales: float32 `[T]`.
        shape: D and the exponent, int64 `[2]`.
    """

    support: torch.Tensor
    values: torch.Tensor
    masks: torch.Tensor
    scales: torch.Tensor
    shape: torch.Tensor

    @classmethod
    def of(cls, modulators: Modulators, scales: torch.Tensor) -> Packed:
        """Packs tau_uni with the masks and scales of all tasks."""
        present = modulators.unified != 0
        values, exponent = to_half(modulators.unified[present])
        own = [[piece[present[span]] for span, piece in modulators.masks(task)] for task in range(len(scales))]
        masks = torch.stack([pack_bits(torch.cat(pieces)) for pieces in own])
        # Piece by piece: the eight bytes per bit of the intermediate never exist for all of D.
        support = [pack_bits(present[span]) for span in spans(len(present), columns(1, present.device))]
        shape = torch.tensor([len(present), exponent])
        return cls(torch.cat(support), values, masks, scales.to(torch.float32), shape)

    def task_vector(self, index: int) -> torch.Tensor:
        """Returns m_index * s_index * tau_uni, float32 `[D]`, with tau_uni rounded to fp16."""
        active = unpack_bits(self.masks[index], len(self.values))
        size, exponent = self.shape.tolist()
        values = from_half(self.values, exponent)
        vector = values.new_zeros(size)
        vector[unpack_bits(self.support, size)] = restore(values, active, float(self.scales[index]))
        return vector


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """Packs bool `[n]` into uint8 `[ceil(n / 8)]`, the first bit lowest."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    packed = padded[:, 0].clone()
    for place in range(1, 8):
        packed |= padded[:, place] << place
    return packed


def unpack_bits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the first `count` bits of packed bytes as bool `[count]`: the inverse of `pack_bits`."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> places) & 1).to(torch.bool).flatten()[:count]
