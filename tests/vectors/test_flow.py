"""The conditional flow: values by hand, its inverse, and its density by automatic differentiation."""

import pytest
import torch

from fcilbench.vectors.flow import ConditionalFlow, Coupling, log_normal


@pytest.mark.parametrize(("features", "count"), [(768, 7_185_408), (512, 6_397_952), (384, 6_004_224)])
def test_parameters(features, count):
    """Of 100 classes: 28.74, 25.59 and 24.02 MB."""
    with torch.device("meta"):
        assert sum(p.numel() for p in ConditionalFlow(features, 100, 512).parameters()) == count
    assert 4 * count / 1e6 == pytest.approx({768: 28.74, 512: 25.59, 384: 24.02}[features], abs=0.005)


def test_a_coupling_by_hand():
    """Shift 0.3 and raw 0: the scale is sigmoid(2) + 0.001 = 0.881797."""
    coupling = Coupling(2, 3, 4).double()
    coupling.net.last.weight.data.zero_()
    coupling.net.last.bias.data = torch.tensor([0.3, 0.0], dtype=torch.float64)
    x, context = torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.eye(3, dtype=torch.float64)[:1]
    u, log_det = coupling(x, context)
    assert u[0].tolist() == pytest.approx([1.0, 2.063594], abs=1e-6)
    assert log_det.exp().item() == pytest.approx(0.881797, abs=1e-6)
    log_p = (log_normal(u) + log_det).item()
    assert log_p == pytest.approx(-4.592881, abs=1e-6)
    assert torch.tensor(log_p / 2).exp().item() == pytest.approx(0.100616, abs=1e-6)
    assert coupling.inverse(u, context)[0].tolist() == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("features", [2, 6, 7])
def test_the_inverse_undoes_it(features):
    torch.manual_seed(0)
    flow, labels = ConditionalFlow(features, 3, 16).double(), torch.tensor([0, 1, 2, 2, 0])
    x = 3 * torch.randn(5, features, dtype=torch.float64)
    u, _ = flow(x, labels)
    assert not torch.allclose(u, x, atol=0.1)
    assert torch.allclose(flow.inverse(u, labels), x, atol=1e-10)
    assert not torch.allclose(flow.inverse(u, labels.flip(0)), x, atol=1e-3)  # it is another map for each class


@pytest.mark.parametrize("features", [2, 5])
def test_the_density_is_that_of_the_jacobian(features):
    torch.manual_seed(0)
    flow = ConditionalFlow(features, 3, 16).double()
    for label in range(3):
        x, labels = torch.randn(1, features, dtype=torch.float64), torch.tensor([label])
        jacobian = torch.autograd.functional.jacobian(lambda rows, labels=labels: flow(rows, labels)[0], x)[0, :, 0]
        u, log_p = flow(x, labels)
        normal = torch.distributions.Normal(0.0, 1.0).log_prob(u).sum()
        assert log_p.item() == pytest.approx((normal + jacobian.det().abs().log()).item(), abs=1e-10)


def test_permutations_are_fixed_and_not_in_the_state():
    torch.manual_seed(0)
    flow = ConditionalFlow(6, 2, 4)
    assert flow.orders[:2].tolist() == [[5, 4, 3, 2, 1, 0]] * 2
    assert [sorted(order.tolist()) for order in flow.orders[2:]] == [list(range(6))] * 2
    assert not [name for name in flow.state_dict() if "orders" in name or "backwards" in name]
    torch.manual_seed(0)
    assert torch.equal(ConditionalFlow(6, 2, 4).orders, flow.orders)


def trained(deviation):
    """Returns features of two classes with means (4, -2) and (-4, 2) that a flow has learned to make, by class."""
    torch.manual_seed(0)
    flow, labels = ConditionalFlow(2, 2, 32), torch.arange(400) % 2
    x = torch.tensor([[4.0, -2.0], [-4.0, 2.0]])[labels] + deviation * torch.randn(400, 2)
    optimiser = torch.optim.Adam(flow.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        (-flow(x, labels)[1].mean()).backward()
        optimiser.step()
    with torch.no_grad():
        made = flow.inverse(torch.randn(400, 2), labels)
    return made[0::2], made[1::2]


def test_it_learns_a_density_and_draws_from_it():
    for rows, sign in zip(trained(2.0), (1, -1), strict=True):
        assert rows.mean(0).tolist() == pytest.approx([4.0 * sign, -2.0 * sign], abs=0.6)
        assert rows.std(0).tolist() == pytest.approx([2.0, 2.0], abs=0.5)


def test_it_cannot_make_features_narrower_than_its_noise():
    """A scale is at most 1.001, as in the authors' code: of features with a deviation of 0.3 it makes wider ones."""
    for rows in trained(0.3):
        assert float(rows.std(0).min()) > 0.6


def test_it_computes_in_float32_under_autocast():
    torch.manual_seed(0)
    flow, x, labels = ConditionalFlow(6, 2, 4), torch.randn(3, 6), torch.tensor([0, 1, 0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = flow(x, labels)
    assert all(torch.equal(one, two) for one, two in zip(found, flow(x, labels), strict=True))
