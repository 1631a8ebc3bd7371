"""RegMean: cases R1 to R6 of specs/methods-a.md, 4.8, with W_global = 0 so that deltas are weights."""

import pytest
import torch

from fcilbench.vectors.regmean import decay_off_diagonal, regmean

HALF = torch.tensor([0.5, 0.5])
W = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)


def test_r1_diagonal_grams():
    merged = regmean(W, [torch.diag(torch.tensor([3.0, 1.0])), torch.diag(torch.tensor([1.0, 3.0]))], HALF, 1.0)
    assert torch.allclose(merged, torch.tensor([[0.75, 0.75]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("gamma", "expected"), [(1.0, (0.25, 0.75)), (0.5, (0.375, 0.625)), (0.1, (0.475, 0.525)), (0.0, (0.5, 0.5))]
)
def test_r2_off_diagonal_decay(gamma, expected):
    grams = [torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([[2.0, -1.0], [-1.0, 2.0]])]
    assert regmean(W, grams, HALF, gamma)[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_r3_equal_grams_give_the_plain_mean_whatever_the_weights():
    gram = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    merged = regmean(W, [gram, gram], torch.tensor([0.9, 0.1]), 1.0)
    assert merged[0].tolist() == pytest.approx([0.5, 0.5], abs=1e-7)


@pytest.mark.parametrize(("weights", "expected"), [((0.5, 0.5), (5.0, 15.0)), ((0.25, 0.75), (5.0, 17.5))])
def test_r4_null_directions_keep_fedavg(weights, expected):
    deltas = torch.tensor([[[2.0, 10.0]], [[6.0, 20.0]]], dtype=torch.float64)
    grams = [torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([3.0, 0.0]))]
    assert regmean(deltas, grams, torch.tensor(weights), 1.0)[0].tolist() == pytest.approx(expected)


def test_r5_one_client_returns_its_weights():
    deltas = torch.tensor([[[2.0, 10.0]]], dtype=torch.float64)
    merged = regmean(deltas, [torch.diag(torch.tensor([1.0, 0.0]))], torch.ones(1), 1.0)
    assert merged.tolist() == [[2.0, 10.0]]


def test_r6_equals_stacked_least_squares_and_ignores_the_scale_of_the_grams():
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(20, 5, generator=generator, dtype=torch.float64) for _ in range(3)]
    deltas = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    grams = [x.T @ x for x in inputs]
    targets = torch.cat([x @ w.T for x, w in zip(inputs, deltas, strict=True)])
    expected = torch.linalg.lstsq(torch.cat(inputs), targets).solution.T
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert torch.allclose(regmean(deltas, grams, weights, 1.0), expected, atol=1e-10)
    assert torch.allclose(regmean(deltas, [7 * g for g in grams], weights, 1.0), expected, atol=1e-10)


def test_rows_that_no_client_moved_do_not_move():
    deltas = torch.randn(3, 4, 6)
    deltas[:, 2] = 0.0
    merged = regmean(deltas, [torch.rand(6, 6).cov() for _ in range(3)], torch.full((3,), 1 / 3), 0.5)
    assert merged[2].tolist() == [0.0] * 6
    assert merged[1].abs().sum() > 0


def test_decay_keeps_the_diagonal():
    gram = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    assert decay_off_diagonal(gram, 0.5).tolist() == [[2.0, 0.5], [0.5, 3.0]]
