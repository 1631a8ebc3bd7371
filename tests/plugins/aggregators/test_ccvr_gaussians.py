"""CCVR's mathematics by hand: class Gaussians (s04: a class of one sample gave NaN), virtual features, the refit."""

import itertools

import numpy as np
import pytest
import torch

from fcilbench.plugins.aggregators.ccvr import (
    Ccvr,
    Gaussians,
    covariances,
    draw,
    measure,
    merge,
    refit_head,
    roots,
)


def of(rows, full=True):
    """Statistics of one class."""
    data = torch.tensor(rows, dtype=torch.float64)
    return measure([(data, torch.zeros(len(data), dtype=torch.int64))], 1, data.shape[1], full)


def covariance(found):
    return found.scatter[0] / (found.count[0] - 1)


@pytest.mark.parametrize("full", [False, True])
def test_one_dimension_with_a_client_of_one_sample(full):
    """{0, 2} and {4}: n = 3, mean 2, variance 4."""
    one, two = of([[0.0], [2.0]], full), of([[4.0]], full)
    assert (one.count.item(), one.mean.item(), covariance(one).item()) == (2, 1, 2)
    assert two.scatter.abs().sum() == 0
    pooled = merge([one, two])
    assert (pooled.count.item(), pooled.mean.item(), covariance(pooled).item()) == (3, 2, 4)


@pytest.mark.parametrize("full", [False, True])
def test_merging_equals_pooling_in_any_order_and_grouping(full):
    generator = torch.Generator().manual_seed(0)
    data = 100 + torch.randn(40, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(40) % 3
    cuts = [(0, 1), (1, 9), (9, 30), (30, 40)]
    parts = [measure([(data[a:b], labels[a:b])], 3, 5, full) for a, b in cuts]
    whole = measure([(data, labels)], 3, 5, full)
    for order in itertools.permutations(parts):
        for other in (merge(order), merge([merge(order[:2]), merge(order[2:])])):
            for name in ("count", "mean", "scatter"):
                assert torch.allclose(getattr(other, name), getattr(whole, name), rtol=0, atol=1e-10)
    own = [data[labels == c] for c in range(3)]
    assert torch.allclose(whole.mean, torch.stack([rows.mean(dim=0) for rows in own]))
    cov = torch.stack([rows.T.cov() if full else rows.var(dim=0) for rows in own])
    assert torch.allclose(whole.scatter / (whole.count - 1).view((-1, 1, 1) if full else (-1, 1)), cov, atol=1e-10)


@pytest.mark.parametrize("full", [False, True])
def test_s04_one_sample_gets_the_variance_of_the_others(full):
    """Class 0 = (1, 2) alone: 0 / 0 would be NaN. Class 1 = (0, 0), (2, 2): [[2, 2], [2, 2]], semi-definite."""
    data, labels = torch.tensor([[1.0, 2.0], [0.0, 0.0], [2.0, 2.0]]), torch.tensor([0, 1, 1])
    found = measure([(data, labels)], 2, 2, full)
    got = covariances(found)
    shrunk = torch.tensor([[2.0, 1.8], [1.8, 2.0]], dtype=torch.float64)  # 0.9 S + 0.1 (tr S / 2) I
    own = shrunk + 1e-8 * torch.eye(2) if full else shrunk.diagonal() + 1e-8
    for each in got:
        assert torch.allclose(each, own.to(got), rtol=0, atol=1e-7 if full else 1e-12)  # 0.1 is a float32
    factor = roots(got)
    again = factor @ factor.transpose(1, 2) if full else factor.square()
    assert torch.allclose(again, got, atol=1e-7)
    assert bool(torch.isfinite(factor).all())


def test_a_single_sample_in_all_keeps_the_least_variance():
    found = of([[1.0, 2.0]], False)
    assert covariances(found)[0].tolist() == [1e-8, 1e-8]


def test_full_covariances_shrink_by_the_number_of_samples():
    scatter = torch.tensor([[4.0, 2.0], [2.0, 2.0]], dtype=torch.float64)
    found = Gaussians(
        torch.tensor([2.0, 3.0]).double(), torch.zeros(2, 2).double(), torch.stack([scatter, 2 * scatter])
    )
    few, many = covariances(found)  # n = 2 <= F, n = 3 > F; both have M2 / (n - 1) = S with tr S / F = 3
    expected = [[[3.9, 1.8], [1.8, 2.1]], [[3.99, 1.98], [1.98, 2.01]]]  # 0.9 S + 0.3 I, 0.99 S + 0.03 I
    for got, by_hand in zip((few, many), expected, strict=True):
        assert torch.allclose(got, torch.tensor(by_hand, dtype=torch.float64), rtol=0, atol=2e-8)


@pytest.mark.parametrize("full", [False, True])
def test_samples_follow_mean_and_covariance(full):
    mean = torch.tensor([[1.0, -2.0], [10.0, 0.0]], dtype=torch.float64)
    cov = torch.tensor([[[2.0, 0.6], [0.6, 1.0]], [[1.0, -0.5], [-0.5, 4.0]]], dtype=torch.float64)
    root = roots(cov if full else cov.diagonal(dim1=1, dim2=2))
    drawn, classes = draw(mean, root, 20_000, np.random.default_rng(1))
    assert (drawn.shape, drawn.dtype, classes.tolist()) == ((40_000, 2), torch.float32, [0] * 20_000 + [1] * 20_000)
    for c in range(2):
        rows = drawn[classes == c]
        expected = cov[c] if full else torch.diag(cov[c].diagonal())
        assert torch.allclose(rows.double().mean(dim=0), mean[c], atol=0.05)
        assert torch.allclose(rows.T.double().cov(), expected, atol=0.1)


def refit(epochs=2, lr=0.1, momentum=0.9):
    return Ccvr.Params(epochs=epochs, batch_size=4, lr_head=lr, momentum=momentum)


def test_a_refit_by_hand():
    """One step of one feature: gradient of CE at equal logits is (p - 1) f and p f."""
    weight, bias = torch.zeros(2, 1), torch.zeros(2)
    before = weight.clone()
    data = (torch.tensor([[2.0]]), torch.tensor([0]))
    w, b, loss = refit_head(weight, bias, lambda random: data, refit(1, 0.5, 0.0), np.random.default_rng(0))
    assert torch.allclose(w, torch.tensor([[0.5], [-0.5]]))
    assert torch.allclose(b, torch.tensor([0.25, -0.25]))
    assert abs(loss - np.log(2)) < 1e-6
    assert torch.equal(weight, before)


def test_the_learning_rate_is_a_cosine_over_the_epochs():
    """Without momentum and with a constant gradient of a saturated loss the steps are lr (1, 3/4, 1/4) for 3 epochs."""
    weights = [0.0]
    for used in (1, 2, 3):
        seen = (torch.tensor([[float(epoch < used)]]) for epoch in range(3))  # a feature of 0 moves no weight
        draw = lambda random, seen=seen: (next(seen), torch.tensor([0]))  # noqa: E731
        w, _, _ = refit_head(torch.zeros(2, 1), torch.zeros(2), draw, refit(3, 1e-4, 0.0), np.random.default_rng(0))
        weights.append(float(w[0]))
    assert np.allclose(np.diff(weights) / weights[1], [1.0, 0.75, 0.25], atol=1e-3)


def test_directions_of_negative_variance_count_as_zero():
    """A client that uploads noise may make them: [[1, 2], [2, 1]] has eigenvalues 3 and -1: all entries become 1.5."""
    assert roots(torch.tensor([[4.0, -1.0]]).double()).tolist() == [[2.0, 0.0]]
    (factor,) = roots(torch.tensor([[[1.0, 2.0], [2.0, 1.0]]]).double())
    assert torch.allclose(factor @ factor.T, torch.full((2, 2), 1.5).double())
