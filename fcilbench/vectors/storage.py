"""How a vector `[D]` is kept on the server: in full, in fewer bits, or its largest entries.

Kim and Do 2026 propose the largest entries (appendix, "Server-Side Storage Overhead"); fp16 and int8 are ours. A stored
vector is a dict of tensors and numbers, fit for a checkpoint, and is read piece by piece: decoding one never needs D
floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from fcilbench.vectors.chunks import columns, spans
from fcilbench.vectors.topk import Cut, cut

Kind = Literal["fp32", "fp16", "int8", "topk"]
Stored = dict[str, Any]

BLOCK = 256
"""Entries that share one scale in int8."""


def store(vector: torch.Tensor, kind: Kind = "fp32", keep: float = 0.1) -> Stored:
    """Encodes a float32 vector.

    `fp16` is scaled by a power of two so that the largest entry is in (2^14, 2^15]: entries down to 2^-29 of it keep
    11 bits. `int8` has one absmax scale in fp32 for each block of 256. `topk` keeps the `keep` largest entries as
    index (int32, int64 beyond 2^31) and fp32 value.

    Args:
        vector: `[D]`; `fp32` keeps it without a copy.
        kind: The encoding.
        keep: Fraction kept by `topk`, in (0, 1].
    """
    if kind == "fp32":
        return {"kind": kind, "size": vector.numel(), "values": vector}
    if kind == "fp16":
        values, exponent = to_half(vector)
        return {"kind": kind, "size": vector.numel(), "values": values, "exponent": exponent}
    if kind == "int8":
        return {"kind": kind, "size": vector.numel(), **_quantise(vector)}
    chosen = cut(vector, keep)
    found = [_chosen(vector, chosen, span) for span in spans(vector.numel(), columns(1, vector.device))]
    index = torch.cat(found).to(torch.int32 if vector.numel() < 2**31 else torch.int64)
    return {"kind": kind, "size": vector.numel(), "index": index, "values": vector[index]}


def read(stored: torch.Tensor | Stored, part: slice) -> torch.Tensor:
    """Decodes the entries of `part` (a slice of `0..D` with both ends), float32 `[part.stop - part.start]`."""
    if isinstance(stored, torch.Tensor):
        return stored[part]
    values: torch.Tensor = stored["values"]
    if stored["kind"] == "fp32":
        return values[part]
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


def size_of(stored: torch.Tensor | Stored) -> int:
    """Returns D."""
    return stored.numel() if isinstance(stored, torch.Tensor) else int(stored["size"])


def stack(vectors: Sequence[torch.Tensor | Stored], part: slice) -> torch.Tensor:
    """Decodes the same entries of several vectors, float32 `[T, part.stop - part.start]`."""
    return torch.stack([read(vector, part) for vector in vectors])


def dense(stored: torch.Tensor | Stored) -> torch.Tensor:
    """Decodes a whole vector, float32 `[D]`."""
    return read(stored, slice(0, size_of(stored)))


def to_half(vector: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns `vector * 2^-exponent` in fp16, and the exponent that puts its largest entry into (2^14, 2^15]."""
    largest = float(vector.abs().max()) if vector.numel() else 0.0
    exponent = max(math.ceil(math.log2(largest)) - 15, -126) if largest > 0 else 0
    return (vector * 2.0**-exponent).to(torch.float16), exponent


def from_half(values: torch.Tensor, exponent: int) -> torch.Tensor:
    """Returns `values * 2^exponent`, float32: the inverse of `to_half` up to the rounding to fp16."""
    return values.to(torch.float32) * 2.0**exponent


def _quantise(vector: torch.Tensor) -> dict[str, torch.Tensor]:
    values = torch.empty(vector.numel(), dtype=torch.int8, device=vector.device)
    scales = []
    for span in spans(vector.numel(), columns(1, vector.device)):
        piece = vector[span]
        blocks = torch.nn.functional.pad(piece, (0, -len(piece) % BLOCK)).view(-1, BLOCK)
        scale = blocks.abs().amax(dim=1) / 127.0
        steps = (blocks / torch.where(scale > 0, scale, 1.0)[:, None]).round_()
        values[span] = steps.to(torch.int8).flatten()[: len(piece)]
        scales.append(scale)
    return {"values": values, "scales": torch.cat(scales)}


def _chosen(vector: torch.Tensor, chosen: Cut, span: slice) -> torch.Tensor:
    """Returns the indices of the entries of a piece that are kept, int64."""
    kept: torch.Tensor = chosen.keeps(vector[span], span.start).nonzero()[:, 0]
    return kept + int(span.start)
