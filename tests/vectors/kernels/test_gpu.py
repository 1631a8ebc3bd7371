"""Kernels beside the torch path on a CUDA device."""

import warnings

import pytest
import torch

from fcilbench.vectors.surgery import coefficients, gram, merge, surgery_matrix
from fcilbench.vectors.trim import Trimmed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
UNIT, DOUBLE = 2.0**-24, 2.0**-53


def updates(count, size, wider=0):
    """Heavy-tailed rows, `size` columns of a matrix that has `wider` more."""
    generator = torch.Generator("cuda").manual_seed(count)
    rows = torch.randn(count, size + wider, generator=generator, device="cuda") * 1e-5
    rows /= torch.rand(count, size + wider, generator=generator, device="cuda") + 0.05
    return rows[:, :size]


@pytest.fixture(autouse=True)
def kernels_on():
    pytest.importorskip("triton", reason="needs Triton")
    from fcilbench.vectors import kernels

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
    assert kernels.STATE.off is None


def test_the_kernels_are_chosen():
    from fcilbench.vectors import kernels

    rows = updates(3, 1000)
    assert kernels.usable(rows)
    assert not kernels.usable(rows.double())
    assert not kernels.usable(rows.T)
    assert not kernels.usable(rows.cpu())
    assert not kernels.usable(rows[:1].expand(kernels.LIMIT + 1, 1000))
    assert not Trimmed(rows, 4.5, segments=(400, 600)).fused
    assert not Trimmed(rows, 4.5, fused=False).fused


@pytest.mark.parametrize(
    ("count", "size", "wider"),
    [(1, 1_000_003, 0), (2, 100, 3), (3, 1_000_000, 77), (10, 2_000_001, 4), (17, 300_001, 1), (64, 100_003, 9)],
)
@pytest.mark.parametrize("threshold", [3.0, None])
def test_both_paths_agree(count, size, wider, threshold):
    rows = updates(count, size, wider)
    ours, plain = Trimmed(rows, threshold), Trimmed(rows, threshold, fused=False)
    for one, two in zip(ours.bounds, plain.bounds, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-9)
    plain._bounds = ours._bounds  # so that no entry at the very edge falls on different sides
    products, dense = gram(ours), plain.dense().double()
    sizes = dense.abs() @ dense.abs().T
    assert ((products - gram(plain)).abs() <= 2 * size * DOUBLE * sizes).all()
    assert int(ours.zeroed) == int(plain.zeroed)
    weights = coefficients(surgery_matrix(products))
    (merged, flips), (expected, turned) = merge(weights, ours), merge(weights, plain)
    slack = 2 * UNIT * (2 * count + 1) * (weights.abs() @ dense.abs())
    assert ((merged - expected).abs() <= slack).all()
    assert int(ours.zeroed) == int(plain.zeroed)
    unclear = (expected.abs() <= slack) | (dense.sum(0).abs() <= 2 * UNIT * count * dense.abs().sum(0))
    assert abs(flips - turned) * size <= int(unclear.sum()) + 0.5


def test_two_rounds_agree_in_every_bit():
    rows = updates(10, 1_000_003)
    results = []
    for _ in range(2):
        vectors = Trimmed(rows, 4.5)
        products = gram(vectors)
        results.append((products, *merge(coefficients(surgery_matrix(products)), vectors)))
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(two)) for one, two in zip(*results, strict=True))


def test_offsets_pass_two_to_the_31():
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of free memory")
    size = 2**30 + 5
    rows = torch.ones(2, size, device="cuda")
    rows[1, -1] = 3.0
    vectors = Trimmed(rows, None)
    assert gram(vectors).tolist() == [[size, size + 2], [size + 2, size + 8]]
    merged, flips = merge(torch.tensor([1.0, -2.0]), vectors)
    assert merged[[0, -1]].tolist() == [-1.0, -5.0]
    assert flips == 1.0
