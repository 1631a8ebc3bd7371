"""Merging of low-rank products: values by hand (specs/faults S08, specs/methods-b 1.7)."""

import pytest
import torch

from fcilbench.vectors.lora import merge_products
from fcilbench.vectors.regmean import regmean


def merged(a, b, merge=None, weights=None):
    a, b = torch.tensor(a), torch.tensor(b)
    p = torch.full((len(a),), 1.0 / len(a)) if weights is None else torch.tensor(weights)
    means = [torch.einsum("n,nij->ij", p, factor) for factor in (a, b)]
    mean = lambda m: torch.einsum("n,nij->ij", p.double(), m)  # noqa: E731
    return merge_products(a, b, means, merge or mean)


def test_the_mean_of_products_is_not_the_product_of_means():
    # Scalars (A, B) = (1, 1) and (3, 3): factors give 2 * 2 = 4, products (1 + 9) / 2 = 5.
    a, b, lost = merged([[[1.0]], [[3.0]]], [[[1.0]], [[3.0]]])
    assert float(b @ a) == pytest.approx(5.0)
    assert lost == pytest.approx(0.0)
    a, b, _ = merged([[[1.0]], [[3.0]]], [[[1.0]], [[3.0]]], weights=[0.75, 0.25])
    assert float(b @ a) == pytest.approx(3.0)  # (3 * 1 + 9) / 4


def test_products_of_two_clients_at_full_and_at_half_rank():
    # A_1 = (1, 0), B_1 = (1, 0)^T; A_2 = (0, 1), B_2 = (0, 1)^T, each with a second, unused direction.
    a, b, lost = merged([[[1.0, 0.0], [0.0, 9.0]], [[0.0, 1.0], [9.0, 0.0]]], [[[1.0, 0], [0, 0]], [[0, 0], [1.0, 0]]])
    assert torch.allclose(b @ a, torch.tensor([[0.5, 0.0], [0.0, 0.5]]).double())
    assert torch.allclose(a @ a.T, torch.eye(2).double())
    assert lost == pytest.approx(0.0, abs=1e-12)
    # At rank 1 of diag(4, 1) / 2 the larger singular value stays: 1/4 of 4 + 1/4 of 1 -> 1 / 17 of the energy is lost.
    a, b, lost = merged([[[2.0, 0.0]], [[0.0, 1.0]]], [[[2.0], [0.0]], [[0.0], [1.0]]])
    assert torch.allclose(b @ a, torch.tensor([[2.0, 0.0], [0.0, 0.0]]).double())
    assert lost == pytest.approx(1 / 17)
    # More rank than inputs: the shapes stay, (1 * 1 + 1 * 3) / 2 = 2.
    a, b, _ = merged([[[1.0], [0.0]], [[0.0], [1.0]]], [[[1.0, 0.0]], [[0.0, 3.0]]])
    assert (a.shape, b.shape) == ((2, 1), (1, 2))
    assert float(b @ a) == pytest.approx(2.0)


def test_factors_that_agree_are_kept_and_an_untrained_b_keeps_its_a():
    torch.manual_seed(0)
    a, b = torch.randn(1, 2, 5), torch.randn(1, 4, 2)
    for count in (1, 3):
        new_a, new_b, lost = merged(a.expand(count, -1, -1).tolist(), b.expand(count, -1, -1).tolist())
        assert torch.allclose(new_a.float(), a[0])
        assert torch.allclose(new_b.float(), b[0])
        assert lost == 0.0
    a = torch.randn(2, 2, 5)
    new_a, new_b, _ = merged(a.tolist(), torch.zeros(2, 4, 2).tolist())
    assert torch.allclose(new_a.float(), a.mean(0))
    assert not new_b.any()


def test_regmean_of_products_is_regmean_of_the_dense_layers():
    torch.manual_seed(1)
    a, b, x = torch.randn(2, 3, 6), torch.randn(2, 5, 3), torch.randn(2, 20, 6).double()
    grams, weights = [each.T @ each for each in x], torch.tensor([0.25, 0.75])
    dense = regmean((b @ a).double(), grams, weights, 0.5)
    solve = lambda rows: regmean(rows, grams, weights, 0.5)  # noqa: E731
    wide_a, wide_b = (torch.cat([f, torch.zeros_like(f)], dim=1 + (f is b)) for f in (a, b))  # rank 6: nothing is lost
    new_a, new_b, lost = merged(wide_a.tolist(), wide_b.tolist(), solve, [0.25, 0.75])
    assert torch.allclose(new_b @ new_a, dense, atol=1e-5)
    assert lost == pytest.approx(0.0, abs=1e-12)
    # At rank 3 the result is the best approximation of the dense one.
    new_a, new_b, lost = merged(a.tolist(), b.tolist(), solve, [0.25, 0.75])
    values = torch.linalg.svdvals(dense)
    assert float((dense - new_b @ new_a).square().sum()) == pytest.approx(float(values[3:].square().sum()), rel=1e-5)
    assert lost == pytest.approx(float(values[3:].square().sum() / values.square().sum()), rel=1e-5)
