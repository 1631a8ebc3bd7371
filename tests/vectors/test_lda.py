"""Linear discriminant analysis from sums: by hand, against scikit-learn, and what must not matter."""

import pytest
import torch
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fcilbench.vectors.class_means import class_sums
from fcilbench.vectors.lda import lda_head, oas_shrinkage, within_covariance

POINTS = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 1])


def fitted(points, labels, shrinkage, level=1.0, classes=2):
    sums, counts = class_sums([(points, labels)], classes, points.shape[1])
    covariance = within_covariance(points.T @ points, sums, counts)
    return covariance, *lda_head(covariance, sums / counts[:, None], shrinkage, level)


def cloud(seed=0, samples=60, features=5, classes=3):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % classes
    mixing = torch.randn(features, features, generator=generator, dtype=torch.float64)
    points = torch.randn(samples, features, generator=generator, dtype=torch.float64) @ mixing
    return points + 2.0 * labels[:, None] * mixing[0], labels


def test_covariance_and_heads_by_hand():
    covariance, weight, bias = fitted(POINTS, LABELS, 1e-4)
    assert covariance.flatten().tolist() == pytest.approx([1.0, 0.5, 0.5, 0.5])
    assert weight[0].tolist() == pytest.approx([1.999400, -1.999000], abs=1e-6)
    assert weight[1].tolist() == pytest.approx([-1.998201, 7.997201], abs=1e-6)
    assert bias.tolist() == pytest.approx([-0.999700, -9.997601], abs=1e-6)
    scores = weight @ torch.ones(2, dtype=torch.float64) + bias
    assert scores.tolist() == pytest.approx([-0.999300, -3.998601], abs=1e-6)
    _, weight, bias = fitted(POINTS, LABELS, 0.1)
    assert weight[0].tolist() == pytest.approx([1.582734, -1.294964], abs=1e-6)
    assert weight[1].tolist() == pytest.approx([-0.719424, 6.043165], abs=1e-6)
    assert bias.tolist() == pytest.approx([-0.791367, -8.345324], abs=1e-6)


def test_ranks_as_scikit_learn():
    """Its `lsqr` solver has the same covariance, and priors of the counts, which are equal here."""
    points, labels = cloud()
    _, weight, bias = fitted(points, labels, 1e-12, classes=3)
    other = LinearDiscriminantAnalysis(solver="lsqr").fit(points.numpy(), labels.numpy())
    probability = torch.from_numpy(other.predict_proba(points.numpy()))
    assert torch.allclose((points @ weight.T + bias).softmax(dim=1), probability, atol=1e-6)


@pytest.mark.parametrize("samples", [4, 20, 400])
def test_oas_is_that_of_scikit_learn(samples):
    points, _ = cloud(samples=samples)
    points = points - points.mean(dim=0)
    covariance = points.T @ points / samples
    assert oas_shrinkage(covariance, samples) == pytest.approx(oas(points.numpy(), assume_centered=True)[1], rel=1e-10)


def test_oas_of_a_sphere_is_the_sphere():
    assert oas_shrinkage(torch.eye(4, dtype=torch.float64), 10) == 1.0
    assert oas_shrinkage(torch.zeros(4, 4, dtype=torch.float64), 10) == 1.0


def test_full_shrinkage_ranks_by_the_distance_to_the_means():
    points, labels = cloud()
    _, weight, bias = fitted(points, labels, 1.0, level=0.7, classes=3)
    means = torch.stack([points[labels == c].mean(dim=0) for c in range(3)])
    scores = points @ weight.T + bias
    distances = torch.cdist(points, means).square()
    assert torch.allclose(scores - scores[:, :1], (distances[:, :1] - distances) / (2 * 0.7), atol=1e-9)


def test_a_constant_added_to_all_features_changes_no_ranking():
    points, labels = cloud()
    _, weight, bias = fitted(points, labels, 1e-2, classes=3)
    _, moved, shifted = fitted(points + 100.0, labels, 1e-2, classes=3)
    one, two = points @ weight.T + bias, (points + 100.0) @ moved.T + shifted
    assert torch.allclose(one - one[:, :1], two - two[:, :1], atol=1e-6)


def test_classes_without_samples_and_no_scatter_at_all():
    point = torch.tensor([0.7, 0.1], dtype=torch.float64)
    sums, counts = torch.stack([3 * point, 0 * point]), torch.tensor([3.0, 0.0])
    covariance = within_covariance(3 * torch.outer(point, point), sums, counts)  # three equal samples, and none
    assert covariance.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    weight, bias = lda_head(covariance, torch.stack([point, 0 * point]), 1e-4, 0.0)
    assert weight.flatten().tolist() == pytest.approx([0.7, 0.1, 0.0, 0.0])
    assert bias.tolist() == pytest.approx([-0.25, 0.0])
