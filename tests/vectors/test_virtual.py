"""Virtual features and the refit of head rows."""

import numpy as np
import torch

from fcilbench.vectors.calibrate import Refit, refit_head
from fcilbench.vectors.gaussian import Gaussians, merge
from fcilbench.vectors.virtual import VirtualFeatures


def gaussians(count, mean, scatter):
    return Gaussians(*(torch.tensor(x, dtype=torch.float64) for x in (count, mean, scatter)))


def collect(*groups):
    return VirtualFeatures.of(groups, 1e-8, 0.1, 0.01)


def test_classes_without_samples_are_left_out_and_labels_are_offset():
    found = gaussians([3, 0, 2], [[1.0], [0.0], [5.0]], [[2.0], [0.0], [1.0]])
    features = collect((4, found))
    assert features.classes.tolist() == [4, 6]
    drawn, slots = features.draw(7, True, np.random.default_rng(0))
    assert drawn.shape == (14, 1)
    assert drawn.dtype == torch.float32
    assert slots.tolist() == [0] * 7 + [1] * 7
    assert collect((0, gaussians([0.0], [[0.0]], [[0.0]]))) is None
    assert collect() is None


def test_a_multinomial_number_has_the_right_total():
    features = collect((0, gaussians([3, 3], [[1.0], [5.0]], [[2.0], [1.0]])))
    _, slots = features.draw(500, False, np.random.default_rng(0))
    counts = slots.bincount().tolist()
    assert sum(counts) == 1000
    assert counts[0] != 500
    assert abs(counts[0] - 500) < 100


def test_the_peers_mixture_has_another_covariance_than_the_pooled_gaussian():
    """fed-mammoth's mixture of two clients has [[6, 3], [3, 2.25]], their pooled Gaussian [[20/3, 8/3], [8/3, 5/3]]."""
    clients = [
        gaussians([2], [[1.0, 1.0]], [[[2.0, 2.0], [2.0, 2.0]]]),
        gaussians([2], [[5.0, 2.0]], [[[2.0, 2.0], [2.0, 2.0]]]),
    ]
    mixture = VirtualFeatures.of([(0, part) for part in clients], 1e-8, 0.0, 0.0)
    pooled = VirtualFeatures.of([(0, merge(clients))], 1e-8, 0.0, 0.0)
    for features, expected in ((mixture, [[6, 3], [3, 2.25]]), (pooled, [[20 / 3, 8 / 3], [8 / 3, 5 / 3]])):
        drawn, _ = features.draw(60_000, True, np.random.default_rng(0))
        assert torch.allclose(drawn.T.double().cov(), torch.tensor(expected, dtype=torch.float64), atol=0.12)
        assert torch.allclose(drawn.mean(dim=0), torch.tensor([3.0, 1.5]), atol=0.05)


def test_components_of_a_class_are_drawn_by_their_counts():
    features = collect((0, gaussians([9], [[0.0]], [[0.0]])), (0, gaussians([1], [[100.0]], [[0.0]])))
    drawn, _ = features.draw(1000, True, np.random.default_rng(0))
    assert 60 < int((drawn > 50).sum()) < 140


def refit(epochs=2, lr=0.1, momentum=0.9, norm=None, batch_size=4):
    return Refit(epochs, batch_size, lr, momentum, norm)


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
    seen = []

    def draw(random):
        seen.append(None)
        return torch.tensor([[1.0]]), torch.tensor([0])

    weights = []
    for epochs in (1, 2, 3):
        how = refit(3, 1e-4, 0.0)
        calls = iter(range(3))

        def limited(random, calls=calls, epochs=epochs):
            features = draw(random)[0] * (next(calls) < epochs)
            return features, torch.tensor([0])

        w, _, _ = refit_head(torch.zeros(2, 1), torch.zeros(2), limited, how, np.random.default_rng(0))
        weights.append(float(w[0]))
    steps = np.diff([0.0, *weights]) / weights[0]
    assert np.allclose(steps, [1.0, 0.75, 0.25], atol=1e-3)


def test_logit_norm_is_scale_free():
    data = (torch.tensor([[2.0, 1.0]]), torch.tensor([0]))
    losses = []
    for scale in (1.0, 10.0):
        weight = scale * torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        losses.append(
            refit_head(
                weight, torch.zeros(2), lambda random: data, refit(1, 1e-9, 0.0, norm=0.1), np.random.default_rng(0)
            )[2]
        )
    z = np.array([2.0, 1.0]) / np.sqrt(5) / 0.1
    assert np.allclose(losses, np.log1p(np.exp(z[1] - z[0])), rtol=1e-4)


def test_a_refit_is_repeatable():
    features = collect((0, gaussians([3, 3], [[1.0, 0.0], [0.0, 1.0]], [[2.0, 1.0], [1.0, 2.0]])))
    runs = [
        refit_head(
            torch.zeros(2, 2), torch.zeros(2), lambda random: features.draw(16, True, random), refit(),
            np.random.default_rng(seed),
        )[0]
        for seed in (0, 0, 1)
    ]  # fmt: skip
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
