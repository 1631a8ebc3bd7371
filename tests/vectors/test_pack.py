"""Packing of the deployed module, and its exact inverse."""

import pytest
import torch

from fcilbench.vectors.pack import Packed, pack_bits, unpack_bits
from fcilbench.vectors.unify import Modulators, restore


def example(size=1000, tasks=3):
    generator = torch.Generator().manual_seed(0)
    basis = list(torch.randn(tasks, size, generator=generator))
    kept = [torch.full((k,), 0.5, dtype=torch.float64) for k in range(tasks)]
    unified = torch.randn(size, generator=generator) * (torch.rand(size, generator=generator) < 0.2) * 1e-5
    modulators = Modulators(basis, kept, unified)
    return modulators, modulators.scales()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_bits_come_back(count):
    bits = torch.rand(count) < 0.5
    packed = pack_bits(bits)
    assert packed.numel() == -(-count // 8)
    assert torch.equal(unpack_bits(packed, count), bits)


def test_task_vectors_equal_the_evaluated_ones_with_tau_uni_in_half_precision():
    modulators, scales = example()
    packed = Packed.of(modulators, scales)
    half = packed.unified()
    exact = modulators.unified
    assert torch.equal(half != 0, exact != 0)
    assert ((half - exact).abs() <= 2**-11 * exact.abs()).all()
    for k in range(3):
        mask = torch.cat([piece for _, piece in modulators.masks(k)])
        assert torch.equal(packed.task_vector(k), restore(half, mask, float(scales[k])))


def test_vectors_that_fit_half_precision_come_back_bit_for_bit():
    basis = [torch.tensor([0.5, -0.25, 0.0, 3.0]) * 2.0**-20]
    modulators = Modulators(basis, [torch.zeros(0)], basis[0] * 2)
    scales = modulators.scales()
    assert torch.equal(Packed.of(modulators, scales).task_vector(0), modulators.deployed(0, float(scales[0])))


def test_tensors_round_trip_and_bytes_by_hand():
    basis = [torch.tensor([1.0, 0.0, -2.0] + [0.0] * 13), torch.tensor([1.0, 1.0, 2.0] + [0.0] * 13)]
    modulators = Modulators(basis, [torch.zeros(0), torch.zeros(1)], torch.tensor([1.0, 1.0, -2.0] + [0.0] * 13))
    packed = Packed.of(modulators, modulators.scales())
    again = Packed.from_tensors(packed.tensors())
    assert torch.equal(again.task_vector(1), packed.task_vector(1))
    # Bitmap 2, three values 6, a byte of mask for each of two tasks, two scales 8, shape 16.
    assert packed.nbytes == 2 + 6 + 2 + 8 + 16
    # Sixteen values 32, two masks of 2 bytes, two scales 8.
    assert packed.dense_nbytes == 32 + 4 + 8


def test_an_empty_support_packs():
    modulators = Modulators([torch.zeros(5)], [torch.zeros(0)], torch.zeros(5))
    assert Packed.of(modulators, modulators.scales()).task_vector(0).tolist() == [0.0] * 5
