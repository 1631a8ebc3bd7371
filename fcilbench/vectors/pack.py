"""The deployed module in as few bytes as it needs: tau_uni on its support, masks on the support, one scale a task.

tau_uni is sparse (at most T * k_pct of D), so it travels as a bitmap of its support and fp16 values there, and each
task's mask as one bit per entry of the support. `Packed.task_vector` is the exact inverse up to the rounding of
tau_uni to fp16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from fcilbench.vectors.chunks import columns, spans
from fcilbench.vectors.storage import from_half, to_half
from fcilbench.vectors.unify import Modulators, restore


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """Packs bool `[n]` into uint8 `[ceil(n / 8)]`, the first bit lowest.

    Example:
        >>> pack_bits(torch.tensor([True, False, True, False, False, False, False, False, True]))
        tensor([5, 1], dtype=torch.uint8)
    """
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    packed = padded[:, 0].clone()
    for place in range(1, 8):
        packed |= padded[:, place] << place
    return packed


def unpack_bits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the first `count` bits of packed bytes as bool `[count]`: the inverse of `pack_bits`."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> places) & 1).to(torch.bool).flatten()[:count]


@dataclass(frozen=True)
class Packed:
    """A packed module of T tasks.

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
        unified = modulators.unified
        present = unified != 0
        values, exponent = to_half(unified[present])
        masks = [_on_support(modulators.masks(index), present) for index in range(len(scales))]
        shape = torch.tensor([unified.numel(), exponent])
        return cls(_pack_long(present), values, torch.stack(masks), scales.to(torch.float32), shape)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Packed:
        """Reads what `tensors` returned, from among other tensors.

        Raises:
            KeyError: If one is missing.
        """
        return cls(**{name: tensors[f"module.{name}"] for name in cls.__dataclass_fields__})

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the tensors by their names in a file."""
        return {f"module.{name}": getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def size(self) -> int:
        """D."""
        return int(self.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes as packed."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the same module without packing: D values in fp16, T masks of D bits, T scales in fp32."""
        return 2 * self.size + len(self.scales) * (-(-self.size // 8) + 4)

    def unified(self) -> torch.Tensor:
        """Returns tau_uni rounded to fp16, float32 `[D]`."""
        return self._spread(from_half(self.values, int(self.shape[1])))

    def task_vector(self, index: int) -> torch.Tensor:
        """Returns m_index * s_index * tau_uni, float32 `[D]`, with tau_uni rounded to fp16."""
        active = unpack_bits(self.masks[index], len(self.values))
        values = from_half(self.values, int(self.shape[1]))
        return self._spread(restore(values, active, float(self.scales[index])))

    def _spread(self, values: torch.Tensor) -> torch.Tensor:
        """Puts the values of the support into their places."""
        whole = values.new_zeros(self.size)
        whole[unpack_bits(self.support, self.size)] = values
        return whole


def _on_support(mask: Iterable[tuple[slice, torch.Tensor]], present: torch.Tensor) -> torch.Tensor:
    return pack_bits(torch.cat([piece[present[span]] for span, piece in mask]))


def _pack_long(bits: torch.Tensor) -> torch.Tensor:
    """Packs piece by piece: the eight bytes per bit of the intermediate never exist for all of D."""
    return torch.cat([pack_bits(bits[span]) for span in spans(len(bits), columns(1, bits.device))])
