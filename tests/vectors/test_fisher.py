"""Algebra of Fishers: pooling, the gradient of EWC's penalty, FisherAvg's merge; values by hand."""

import pytest
import torch
import torch.nn.functional as F

from fcilbench.vectors import fisher as module
from fcilbench.vectors.fisher import add_penalty_gradient, merge, pool, unit


def test_pooled_clients_are_the_fisher_of_the_pooled_data():
    torch.manual_seed(0)
    x, y = torch.randn(30, 5, dtype=torch.float64), torch.randint(0, 3, (30,))
    weight = torch.randn(3, 5, dtype=torch.float64)

    def mean_fisher(rows):
        residual = F.one_hot(y[rows], 3) - F.softmax(x[rows] @ weight.T, dim=1)
        return ((residual**2).T @ x[rows] ** 2 / len(rows)).flatten()

    parts = torch.randperm(30).split([1, 17, 12])
    pooled = pool((mean_fisher(rows) for rows in parts), [len(rows) for rows in parts])
    assert torch.allclose(pooled, mean_fisher(torch.arange(30)), rtol=0, atol=1e-12)


def test_pool_by_hand_leaves_its_inputs_alone():
    one, two = torch.tensor([1.0, 0.0]), torch.tensor([5.0, 2.0])
    assert pool([one, two], [3, 1]).tolist() == [2.0, 0.5]
    assert one.tolist() == [1.0, 0.0]
    assert pool([one], [7]).tolist() == [1.0, 0.0]


def test_merge_by_hand():
    """theta = 1, 3 with F = 3, 1 and equal weights: (3 * 1 + 1 * 3) / 4 = 1.5."""
    assert merge(torch.tensor([[1.0], [3.0]]), [torch.tensor([3.0]), torch.tensor([1.0])], [1, 1], 0.0).tolist() == [
        1.5
    ]
    unequal = merge(torch.tensor([[1.0], [3.0]]), [torch.tensor([3.0]), torch.tensor([1.0])], [1, 3], 0.0)
    assert unequal.tolist() == [2.0]


def test_equal_fishers_give_the_weights():
    delta, fisher = torch.randn(3, 40), torch.rand(40)
    for weights in ([0.5, 0.3, 0.2], [1.0, 1.0, 1.0]):
        share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        merged = merge(delta, [fisher] * 3, weights, 1e-12)
        assert torch.allclose(merged.double(), share @ delta.double(), atol=1e-6)


def test_one_client_is_returned_exactly():
    delta, fisher = torch.randn(1, 1000), torch.rand(1000) * 1e-20
    fisher[:10] = 0.0
    for epsilon in (0.0, 1e-12):
        assert torch.equal(merge(delta, [fisher], [1.0], epsilon), delta[0])


def test_a_client_without_information_has_no_vote_and_scale_does_not_matter():
    delta = torch.randn(2, 50)
    assert torch.equal(merge(delta, [torch.ones(50), torch.zeros(50)], [1.0, 1.0], 0.0), delta[0])
    one, two = torch.rand(50), torch.rand(50)
    scaled = merge(delta, [one * 2**-20, two * 2**-20], [0.3, 0.7], 0.0)
    assert torch.equal(scaled, merge(delta, [one, two], [0.3, 0.7], 0.0))


def test_coordinates_without_information_take_the_weights():
    delta, zero = torch.tensor([[1.0, 1.0], [5.0, 5.0]]), torch.zeros(2)
    for epsilon in (0.0, 1e-12):
        assert merge(delta, [zero, zero], [3.0, 1.0], epsilon).tolist() == [2.0, 2.0]


def test_a_merge_stays_between_the_clients_and_does_not_depend_on_pieces(monkeypatch):
    torch.manual_seed(1)
    delta, fishers = torch.randn(4, 999), [torch.rand(999) ** 8 for _ in range(4)]
    before = delta.clone()
    merged = merge(delta, fishers, [0.4, 0.3, 0.2, 0.1], 1e-12)
    assert bool((merged >= delta.amin(0)).all())
    assert bool((merged <= delta.amax(0)).all())
    assert torch.equal(delta, before)
    monkeypatch.setattr(module, "_CHUNK", 40)
    assert torch.equal(merge(delta, fishers, [0.4, 0.3, 0.2, 0.1], 1e-12), merged)


def test_unit_norm():
    assert unit(torch.tensor([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])
    assert unit(torch.zeros(2)).tolist() == [0.0, 0.0]


def test_penalty_gradient_by_hand_and_by_autograd():
    """F = (1, 2), theta - theta* = (3, -1), lambda = 1: penalty 11, gradient (6, -4)."""
    fisher, anchor = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    theta = (anchor + torch.tensor([3.0, -1.0])).requires_grad_()
    penalty = (fisher * (theta - anchor) ** 2).sum()
    penalty.backward()
    assert penalty.item() == 11.0
    gradient = torch.zeros(2)
    add_penalty_gradient(gradient, theta.detach(), fisher, anchor, 1.0)
    assert gradient.tolist() == theta.grad.tolist() == [6.0, -4.0]
    at_rest = torch.zeros(2)
    add_penalty_gradient(at_rest, anchor, fisher, anchor, 1.0)
    assert at_rest.tolist() == [0.0, 0.0]
