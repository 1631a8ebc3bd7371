"""RegMean: six small cases by hand (r1 to r6), with W_global = 0 so that deltas are weights, and its numerics."""

import pytest
import torch

from fcilbench.vectors.regmean import decay_off_diagonal, regmean, regmean_plain

HALF = torch.tensor([0.5, 0.5])
W = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)


def test_r1_diagonal_grams():
    merged = regmean(W, [torch.diag(torch.tensor([3.0, 1.0])), torch.diag(torch.tensor([1.0, 3.0]))], HALF, 1.0)
    assert torch.allclose(merged, torch.tensor([[0.75, 0.75]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("gamma", "expected"), [(1.0, (0.25, 0.75)), (0.5, (0.375, 0.625)), (0.1, (0.475, 0.525)), (0.0, (0.5, 0.5))]
)
def test_r2_off_diagonal_decay_in_both_forms(gamma, expected):
    grams = [torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([[2.0, -1.0], [-1.0, 2.0]])]
    assert regmean(W, grams, HALF, gamma)[0].tolist() == pytest.approx(expected, abs=1e-12)
    assert regmean_plain(W, grams, gamma)[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_decay_by_hand():
    for gamma, off in ((1.0, 2.0), (0.5, 1.0), (0.0, 0.0)):
        assert decay_off_diagonal(torch.tensor([[4.0, 2.0], [2.0, 3.0]]), gamma).tolist() == [[4.0, off], [off, 3.0]]


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


def test_r4_and_r5_in_the_plain_form():
    local = torch.tensor([[[2.0, 10.0]], [[6.0, 20.0]]], dtype=torch.float64)
    grams = [torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([3.0, 0.0]))]
    assert regmean_plain(local, grams, 1.0)[0].tolist() == pytest.approx([5.0, 0.0])
    assert regmean_plain(local[:1], grams[:1], 1.0)[0].tolist() == pytest.approx([2.0, 0.0])


@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.9, 0.999])
def test_the_fast_solver_equals_the_pseudoinverse(gamma):
    """Features of scale 1 to 1e-4 and a dead input, fewer rows than inputs on each client."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(0, -4, 12, dtype=torch.float64)
    scale[5] = 0.0
    inputs = [torch.randn(4, 12, generator=generator, dtype=torch.float64) * scale for _ in range(3)]
    deltas = torch.randn(3, 5, 12, generator=generator, dtype=torch.float64)
    grams = [decay_off_diagonal(x.T @ x, gamma) for x in inputs]
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    mean = torch.einsum("n,noi->oi", weights, deltas)
    total = sum(grams)
    numerator = sum((d - mean) @ g for d, g in zip(deltas, grams, strict=True))
    expected = mean + numerator @ torch.linalg.pinv(total, hermitian=True)
    got = regmean(deltas, [x.T @ x for x in inputs], weights, gamma)
    assert torch.allclose(got, expected, rtol=1e-6, atol=1e-7)
    assert torch.allclose(got[:, 5], mean[:, 5], atol=1e-12)


def test_diagonals_stand_for_gamma_zero():
    generator = torch.Generator().manual_seed(0)
    grams = [x.T @ x for x in torch.randn(3, 9, 4, generator=generator)]
    grams[0][2] = grams[0][:, 2] = grams[1][2] = grams[1][:, 2] = grams[2][2] = grams[2][:, 2] = 0.0
    deltas = torch.randn(3, 2, 4, generator=generator)
    weights = torch.tensor([0.2, 0.3, 0.5])
    full = regmean(deltas, grams, weights, 0.0)
    assert torch.allclose(regmean(deltas, [g.diagonal() for g in grams], weights, 0.0), full, atol=1e-7)
    assert torch.allclose(full[:, 2], (weights[:, None, None] * deltas).sum(0)[:, 2], atol=1e-6)


def test_rounding_on_the_wire_does_not_blow_up_null_directions():
    """float32 Grams of rank 3 in 20 dimensions at gamma = 1: the merge stays as large as the updates."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    grams = []
    for _ in range(4):
        inputs = torch.randn(50, 3, generator=generator, dtype=torch.float64) @ shared
        grams.append((inputs.T @ inputs).float())
    deltas = torch.randn(4, 5, 20, generator=generator)
    assert float(regmean(deltas, grams, torch.full((4,), 0.25), 1.0).abs().max()) < 3 * float(deltas.abs().max())


def test_identical_rows_do_not_drift():
    """The same row on three clients: d = 64, features of scale 1 to 1e-4."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(0, -4, 64)
    grams = [x.T @ x for x in (torch.randn(30, 64, generator=generator) * scale for _ in range(3))]
    row = torch.randn(1, 64, generator=generator).expand(3, 1, 64)
    merged = regmean(row, grams, torch.full((3,), 1 / 3), 0.5)
    assert torch.allclose(merged, row[0], rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_edge_3_an_input_below_the_rounding_of_the_grams_is_dead(gamma):
    """Edge case 3: x1 = (1, e), moved by (1, 0); x2 = (1, 0), not moved: the second weight was 1 / (3.5 e)."""
    e = 1e-4  # e^2 is below float32's rounding of 1
    grams = [torch.tensor([[1.0, e], [e, e * e]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])]
    deltas = torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]])
    merged = regmean(deltas, grams, torch.tensor([0.5, 0.5]), gamma)
    assert torch.allclose(merged, torch.tensor([[0.5, 0.0]]), atol=1e-3)
