"""Storage of basis vectors: what each encoding keeps, and how many bytes it takes."""

import pytest
import torch

from fcilbench.federation.server import tree_nbytes
from fcilbench.vectors.storage import dense, from_half, read, stack, store, to_half

KINDS = ("fp32", "fp16", "int8", "topk")


def test_fp16_keeps_eleven_bits_of_tiny_vectors():
    # 1e-6 itself has one bit in fp16; under the power-of-two scale it has eleven.
    vector = torch.tensor([3e-6, -1e-6, 0.0, 2.0**-20])
    stored = store(vector, "fp16")
    assert (dense(stored) - vector).abs().max() <= 2**-11 * 3e-6
    assert dense(stored)[3] == 2.0**-20


@pytest.mark.parametrize("largest", [1.0, 1.5, 2.0**-17, 3e-30, 60000.0])
def test_to_half_uses_the_whole_range(largest):
    values, exponent = to_half(torch.tensor([largest, 0.0]))
    assert 2**14 < float(values[0]) <= 2**15
    assert float(from_half(values, exponent)[0]) == pytest.approx(largest, rel=2**-11)


def test_fp16_of_a_zero_vector():
    assert dense(store(torch.zeros(3), "fp16")).tolist() == [0.0, 0.0, 0.0]


def test_int8_by_hand():
    # Two blocks: absmax 127 gives steps of 1, absmax 254 steps of 2.
    vector = torch.zeros(300)
    vector[:3] = torch.tensor([127.0, 1.4, -2.6])
    vector[256:259] = torch.tensor([-254.0, 3.0, 0.9])
    back = dense(store(vector, "int8"))
    assert back[:3].tolist() == [127.0, 1.0, -3.0]
    assert back[256:259].tolist() == [-254.0, 4.0, 0.0]  # 3 is 1.5 steps, and halves round to even


def test_topk_keeps_the_largest():
    vector = torch.tensor([1.0, -3.0, 2.0, -2.0, 2.0])
    assert dense(store(vector, "topk", 0.6)).tolist() == [0.0, -3.0, 2.0, -2.0, 0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_slices_read_what_the_whole_holds(kind):
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    stored = store(vector, kind, 0.3)
    whole = dense(stored)
    for part in (slice(0, 1), slice(100, 700), slice(255, 257), slice(999, 1000), slice(5, 5)):
        assert torch.equal(read(stored, part), whole[part])
    assert torch.equal(stack([stored, vector], slice(3, 9)), torch.stack([whole[3:9], vector[3:9]]))


@pytest.mark.parametrize(
    ("kind", "nbytes"), [("fp32", 4 * 2560), ("fp16", 2 * 2560), ("int8", 2560 + 4 * 10), ("topk", 8 * 256)]
)
def test_bytes(kind, nbytes):
    assert tree_nbytes(store(torch.randn(2560), kind, 0.1)) == nbytes
