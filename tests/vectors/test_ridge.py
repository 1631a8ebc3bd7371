"""Ridge regression from sufficient statistics against the direct solution."""

import pytest
import torch
import torch.nn.functional as F

from fcilbench.vectors.class_means import class_sums
from fcilbench.vectors.ridge import GRID, gcv_strength, holdout_errors, solve_ridge


def problem(samples=40, features=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % classes
    inputs = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    inputs[:, :classes] += F.one_hot(labels, classes)
    return inputs, labels


def test_by_hand():
    """x = 1, 2 of classes 0, 1: G = 5, S = (1, 2); lambda = 0.2 * 5: W = S / 6."""
    solution = solve_ridge(torch.tensor([[5.0]]), torch.tensor([[1.0], [2.0]]), 0.2)
    assert solution.flatten().tolist() == pytest.approx([1 / 6, 2 / 6])


def test_equals_stacked_least_squares():
    inputs, labels = problem()
    sums, _ = class_sums([(inputs, labels)], 3, 6)
    level = 0.3 * float((inputs.T @ inputs).diagonal().mean())
    stacked = torch.cat([inputs, level**0.5 * torch.eye(6, dtype=torch.float64)])
    targets = torch.cat([F.one_hot(labels, 3).double(), torch.zeros(6, 3).double()])
    expected = torch.linalg.lstsq(stacked, targets).solution.T
    assert torch.allclose(solve_ridge(inputs.T @ inputs, sums, 0.3), expected, atol=1e-12)


@pytest.mark.parametrize("samples", [40, 12, 5])
def test_gcv_is_the_minimum_of_its_definition(samples):
    """n RSS / (n - tr H)^2 where tr H <= 0.7 n, from the samples themselves; also with fewer samples than features."""
    inputs, labels = problem(samples, 8)
    targets = F.one_hot(labels, 3).double()
    gram = inputs.T @ inputs
    sums, _ = class_sums([(inputs, labels)], 3, 8)
    scores = []
    for strength in GRID:
        level = strength * float(gram.diagonal().mean())
        hat = inputs @ torch.linalg.solve(gram + level * torch.eye(8).double(), inputs.T)
        rss, left = float((targets - hat @ targets).square().sum()), samples - float(hat.trace())
        scores.append(samples * rss / left**2 if left > 0.3 * samples else float("inf"))
    assert gcv_strength(gram, sums, samples) == GRID[scores.index(min(scores))]


@pytest.mark.parametrize("seed", range(20))
def test_gcv_with_half_as_many_samples_as_features_is_near_the_best_strength(seed):
    """Errors on 400 other samples. Without its bound GCV takes a false minimum in seeds 4, 5, 14 and 16."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, 41, dtype=torch.float64) ** -2.0
    means = scale * torch.randn(4, 40, generator=generator, dtype=torch.float64)

    def draw(samples):
        labels = torch.arange(samples) % 4
        noise = torch.randn(samples, 40, generator=generator, dtype=torch.float64)
        return means[labels] + scale * noise, F.one_hot(labels, 4).double()

    (inputs, targets), (others, truth) = draw(20), draw(400)
    gram, sums = inputs.T @ inputs, targets.T @ inputs
    errors = [float((others @ solve_ridge(gram, sums, each).T - truth).square().sum()) for each in GRID]
    assert errors[GRID.index(gcv_strength(gram, sums, 20))] < 1.5 * min(errors)


def test_the_scale_of_the_features_changes_no_logit():
    inputs, labels = problem()
    logits = []
    for scale in (1.0, 1000.0):
        sums, _ = class_sums([(scale * inputs, labels)], 3, 6)
        gram = scale**2 * inputs.T @ inputs
        solution = solve_ridge(gram, sums, gcv_strength(gram, sums, 40))
        logits.append(scale * inputs @ solution.T)
    assert torch.allclose(*logits, atol=1e-10)


def test_features_of_zeros_give_weights_of_zero():
    gram, sums = torch.zeros(2, 2), torch.zeros(3, 2)
    assert solve_ridge(gram, sums, gcv_strength(gram, sums, 4)).abs().sum() == 0


def test_a_gram_that_noise_made_indefinite_is_solved_without_its_negative_directions():
    """Eigenvalues 4 and -1 along the axes: 4 and 0. Mean 2, strength 0.5, level 1: W = (5 / (4 + 1), 3 / (0 + 1))."""
    gram, sums = torch.diag(torch.tensor([4.0, -1.0])), torch.tensor([[5.0, 3.0]])
    assert solve_ridge(gram, sums, 0.5).tolist() == [pytest.approx([1.0, 3.0])]
    assert torch.isfinite(solve_ridge(gram, sums, gcv_strength(gram, sums, 4))).all()


def test_errors_on_held_out_samples_by_hand():
    """Fitted x = 1 (class 0) and 2 (class 1), held out 1 (class 0) and 3 (class 1): W = (1, 2) / (5 + lambda)."""
    fitted = torch.tensor([[5.0]]), torch.tensor([[1.0], [2.0]])
    held = torch.tensor([[10.0]]), torch.tensor([[1.0], [3.0]])
    errors = holdout_errors(fitted, held, 2.0, (0.1, 1.0, 10.0))
    assert errors == pytest.approx([1.177240, 1.055556, 1.288889], abs=1e-6)


def test_errors_from_sums_are_those_of_the_samples():
    inputs, labels = problem()
    targets = F.one_hot(labels, 3).double()
    parts = [(x.T @ x, y.T @ x) for x, y in ((inputs[:30], targets[:30]), (inputs[30:], targets[30:]))]
    levels = (1e-3, 1.0, 50.0)
    for level, error in zip(levels, holdout_errors(*parts, 10.0, levels), strict=True):
        weight = torch.linalg.solve(parts[0][0] + level * torch.eye(6).double(), parts[0][1].T)
        assert error == pytest.approx(float((inputs[30:] @ weight - targets[30:]).square().sum()), rel=1e-9)


def test_a_head_from_sums_of_two_clients_by_hand():
    """(1, 0) of class 0 and (1, 1) of class 1 here, (0, 2) of class 1 there; lambda = 1 is 2 / 7 of the mean."""
    gram, sums = torch.tensor([[2.0, 1.0], [1.0, 5.0]]), torch.tensor([[1.0, 0.0], [1.0, 3.0]])
    solution = solve_ridge(gram, sums, 2 / 7)
    assert solution[0].tolist() == pytest.approx([0.352941, -0.058824], abs=1e-6)
    assert solution[1].tolist() == pytest.approx([0.176471, 0.470588], abs=1e-6)
