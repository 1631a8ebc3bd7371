"""The shared networks and losses of generative replay against values by hand."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.vectors.gan import (
    Critic,
    Generator,
    auxiliary_loss,
    balanced_rows,
    divergence,
    from_vector,
    pixels,
    to_vector,
    wasserstein_critic_loss,
)

DGR = {32: (3_584_003, 662_977), 64: (6_066_179, 675_265), 224: (43_298_819, 859_585)}
FEDCIL = {32: (4_403_203, 1_072_677), 64: (9_342_979, 2_313_765)}


@pytest.mark.parametrize(("size", "counts"), DGR.items())
def test_parameters_of_dgrs_networks(size, counts):
    with torch.device("meta"):
        networks = Generator(100, 3, size, nn.Sigmoid()), Critic(3, size, 1)
    assert tuple(sum(p.numel() for p in network.parameters()) for network in networks) == counts


@pytest.mark.parametrize(("size", "counts"), FEDCIL.items())
def test_parameters_of_fedcils_networks_with_100_classes(size, counts):
    with torch.device("meta"):
        networks = Generator(200, 3, size, nn.Tanh()), Critic(3, size, 101)
    assert tuple(sum(p.numel() for p in network.parameters()) for network in networks) == counts


def test_parameters_of_fedcils_largest_generator():
    with torch.device("meta"):
        assert sum(p.numel() for p in Generator(200, 3, 224, nn.Tanh()).parameters()) == 83_439_619


@pytest.mark.parametrize("size", [8, 10, 28])
def test_images_have_the_size_and_the_range_that_are_asked_for(size):
    torch.manual_seed(0)
    images = Generator(6, 3, size, nn.Sigmoid(), width=8)(torch.randn(5, 6)).detach()
    assert images.shape == (5, 3, size, size)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert Critic(3, size, 4, width=8)(images).shape == (5, 4)


def test_a_network_is_its_vector():
    torch.manual_seed(0)
    make = partial(Generator, 6, 1, 8, nn.Sigmoid(), 8)
    own, z = make(), torch.randn(9, 6)
    own(z)  # moves the running statistics
    vector = to_vector(own)
    assert len(vector) == sum(p.numel() for p in own.parameters()) + 2 * (8 + 4 + 2 + 1)
    other = from_vector(make, vector)
    assert other.training
    assert torch.equal(other.eval()(z), own.eval()(z))
    next(iter(other.parameters())).data.zero_()
    assert torch.equal(to_vector(own), vector)  # nothing is shared


def test_the_mean_of_dishonest_updates_has_no_variance_below_zero():
    make = partial(Generator, 6, 1, 8, nn.Sigmoid(), 8)
    below = from_vector(make, to_vector(make()) - 3.0).eval()  # running variances of 1 would be -2
    assert {float(v.max()) for name, v in below.state_dict().items() if name.endswith("running_var")} == {0.0}
    assert bool(below(torch.randn(4, 6)).isfinite().all())


def test_the_critics_loss_by_hand():
    """D(x) = 3 x1 + 4 x2 has a gradient of norm 5 everywhere: -3.5 + 3.5 + 10 (1 - 5)^2."""
    critic = nn.Linear(2, 1, bias=False).double()
    critic.weight.data = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    real, fake = torch.eye(2, dtype=torch.float64), torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for share in (0.0, 0.3, 1.0):
        mix = torch.full((2,), share, dtype=torch.float64)
        assert wasserstein_critic_loss(critic, real, fake, mix, 10.0).item() == pytest.approx(160.0)
        assert wasserstein_critic_loss(critic, real, fake, mix, 0.0).item() == pytest.approx(0.0)
    assert -critic(fake).mean().item() == pytest.approx(-3.5)


def test_the_penalty_is_that_of_the_whole_images_gradient_between_real_and_fake():
    """D(x) = sum x^2 / 2 has the gradient x: the penalty is that of the norm of the mixture, and real counts by mix."""

    def critic(x):
        return x.square().flatten(1).sum(dim=1, keepdim=True) / 2

    real, fake = torch.full((1, 3, 2, 2), 2.0), torch.zeros(1, 3, 2, 2)
    found = wasserstein_critic_loss(critic, real, fake, torch.tensor([0.25]), 10.0)
    norm = 0.5 * 12**0.5  # twelve entries of 0.25 * 2
    assert found.item() == pytest.approx(-24 + 10 * (1 - norm) ** 2)


def test_the_penalty_is_zero_if_the_norm_is_one_everywhere():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Flatten(), nn.Linear(12, 1))
    critic[1].weight.data /= critic[1].weight.norm()
    real, fake, mix = torch.rand(4, 3, 2, 2), torch.rand(4, 3, 2, 2), torch.rand(4)
    without = wasserstein_critic_loss(critic, real, fake, mix, 0.0)
    assert torch.allclose(wasserstein_critic_loss(critic, real, fake, mix, 10.0), without, atol=1e-6)
    critic[1].weight.data *= 1.1
    apart = [wasserstein_critic_loss(critic, real, fake, mix, strength).item() for strength in (10.0, 0.0)]
    assert apart[0] - apart[1] == pytest.approx(10 * 0.1**2, rel=1e-3)


def scores(genuine, classes):
    """Scores `[b, 1 + C]` whose sigmoid and softmax are the given probabilities."""
    genuine, classes = torch.tensor(genuine, dtype=torch.float64), torch.tensor(classes, dtype=torch.float64)
    return torch.cat([torch.logit(genuine)[:, None], classes.log() + 0.7], dim=1)


REAL, FAKE = scores([0.8, 0.6], [[0.7, 0.3], [0.4, 0.6]]), scores([0.3, 0.1], [[0.6, 0.4], [0.5, 0.5]])


def test_losses_of_the_auxiliary_classifier_by_hand():
    labels = torch.tensor([0, 1])
    critic = auxiliary_loss(REAL, labels, True) + auxiliary_loss(FAKE, labels, False)
    assert critic.item() == pytest.approx(1.633739, abs=1e-6)
    assert auxiliary_loss(FAKE, labels, True).item() == pytest.approx(2.355265, abs=1e-6)


def test_divergence_by_hand_and_its_gradient():
    wanted, found = FAKE[:, 1:].clone().requires_grad_(), REAL[:, 1:].clone().requires_grad_()
    apart = divergence(wanted, found)
    assert apart.item() == pytest.approx(0.021497, abs=1e-6)
    apart.backward()
    assert wanted.grad is None
    assert torch.allclose(found.grad, torch.tensor([[0.1, -0.1], [-0.1, 0.1]], dtype=torch.float64) / 2)
    far = divergence(torch.tensor([[200.0, -200.0]]), torch.tensor([[-200.0, 200.0]]))
    assert far.item() == pytest.approx(400.0)  # finite without a floor


def test_a_balanced_draw_takes_each_label_alike_whatever_its_count():
    labels = np.array([3] * 90 + [5] * 9 + [8])
    rows = balanced_rows(labels, 30_000, np.random.default_rng(0))
    shares = [float((labels[rows] == label).mean()) for label in (3, 5, 8)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.01)
    assert len(set(rows[labels[rows] == 3])) == 90


def test_pixels_round_and_keep_the_order():
    images = (
        torch.tensor([[-0.1, 0.0], [0.501, 1.2]])[None, None].expand(1, 3, 2, 2)
        * torch.tensor([1.0, 0.5, 0.0])[None, :, None, None]
    )
    found = pixels(images)
    assert (found.dtype, found.shape) == (torch.uint8, (1, 2, 2, 3))
    assert found[0, 1].tolist() == [[128, 64, 0], [255, 153, 0]]
    assert found[0, 0].tolist() == [[0, 0, 0], [0, 0, 0]]
