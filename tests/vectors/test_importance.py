"""Importance of samples by hand, and the head's gradient against automatic differentiation."""

import pytest
import torch
import torch.nn.functional as F

from fcilbench.vectors.importance import gradient_importance, head_gradients, largest


def squares(centres):
    """Gradients of l_i = (v - c_i)^2 / 2."""
    c = torch.tensor(centres, dtype=torch.float64)
    return lambda v: ((v - c).abs(), (v - c).sum().reshape(1))


@pytest.mark.parametrize(
    ("summed", "scores", "end"),
    [(True, [0.864167, 4.530833, 4.635833], 0.603625), (False, [0.898056, 4.564722, 4.601944], 0.542875)],
)
def test_scores_and_informative_model_by_hand(summed, scores, end):
    """c = (1, 3, -2), w = 0.5, lambda = 0.5 (q = 0.5), eta = 0.1, s = 3: the second and the third sample stay."""
    start = torch.tensor([0.5], dtype=torch.float64)
    found, v = gradient_importance(squares([1.0, 3.0, -2.0]), start, 3, rate=0.1, pull=0.5, summed=summed)
    assert found.tolist() == pytest.approx(scores, abs=1e-6)
    assert v.item() == pytest.approx(end, abs=1e-6)
    assert largest(found, [(torch.arange(3), 2)]) == [1, 2]


def test_a_strong_pull_by_hand():
    """c = (0, 2), w = 0.5, lambda = 0.2 (q = 2), eta = 0.1, s = 2."""
    start = torch.tensor([0.5], dtype=torch.float64)
    found, v = gradient_importance(squares([0.0, 2.0]), start, 2, rate=0.1, pull=2.0, summed=True)
    assert found.tolist() == pytest.approx([0.8, 2.2], abs=1e-6)
    assert v.item() == pytest.approx(0.66, abs=1e-6)


def test_with_one_step_the_pull_does_not_count():
    start = torch.tensor([0.5], dtype=torch.float64)
    one, other = (
        gradient_importance(squares([1.0, 3.0]), start, 1, rate=0.1, pull=pull, summed=True)[0] for pull in (0.0, 9.0)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("feature", "chances", "label", "norm"),
    [([1.0, 0.0], [0.9, 0.1], 0, 0.2), ([1.0, 0.0], [0.2, 0.8], 0, 1.6), ([3.0, 4.0], [0.5, 0.5], 0, 3.605551)],
)
def test_the_norm_of_the_heads_gradient_by_hand(feature, chances, label, norm):
    """A head without weights whose biases are the logarithms of the chances."""
    head = torch.cat([torch.zeros(4, dtype=torch.float64), torch.tensor(chances, dtype=torch.float64).log()])
    norms, _ = head_gradients(torch.tensor([feature]), torch.tensor([label]), 2, 2)(head)
    assert norms.item() == pytest.approx(norm, abs=1e-6)


def test_head_gradients_are_those_of_automatic_differentiation():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    labels, seen, classes = torch.arange(6) % 3, 3, 5
    head = torch.randn(classes * 5, generator=generator, dtype=torch.float64, requires_grad=True)
    norms, total = head_gradients(features, labels, classes, seen)(head.detach())
    singles = []
    for feature, label in zip(features, labels, strict=True):
        logits = feature @ head[:20].view(5, 4).T + head[20:]
        singles.append(torch.autograd.grad(F.cross_entropy(logits[None, :seen], label[None]), head)[0])
    assert torch.allclose(norms, torch.stack([own.norm() for own in singles]), atol=1e-12)
    assert torch.allclose(total, torch.stack(singles).sum(dim=0), atol=1e-12)


def test_the_largest_of_each_group_in_order_and_ties_to_the_lower_row():
    scores = torch.tensor([1.0, 5.0, 5.0, 4.0, 5.0])
    assert largest(scores, [(torch.arange(5), 2)]) == [1, 2]
    assert largest(scores, [(torch.tensor([0, 3]), 1), (torch.tensor([1, 2, 4]), 2)]) == [1, 2, 3]
